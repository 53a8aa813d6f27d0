"""A stream goes on while its run waits for a person, and past the answer."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from agentruns import enqueue_run, stop_run
from agentruns.models import AgentRun
from tests.support import PATIENCE_SECONDS

from .viewers import Client, Seen

TYPES = [
    *("user_message_created", "run_queued", "run_started", "content_delta", "input_required"),
    *("input_received", "run_resumed", "content_delta", "complete"),
]


def questioning(user: Any) -> AgentRun:
    """A run that a real worker carries out, up to its question."""
    return enqueue_run(conversation=None, user=user, content="go", agent="questioning")


def watch(client: Client, url: str) -> Seen:
    """What a socket tells, to its end."""
    seen = Seen()
    with client.socket(url) as socket:
        while not seen.ended:
            event = json.loads(socket.recv(timeout=PATIENCE_SECONDS))
            if event["type"] != "keepalive":
                seen.events.append(event)
    return seen


def test_viewers_from_every_cursor_see_each_event_once_past_the_answer(
    client: Client, user: Any, worker: None
) -> None:
    run = questioning(user)
    route = f"/api/runs/{run.pk}/events"
    with client.stream(route) as first, ThreadPoolExecutor(4) as others:
        asked = first.until("input_required")
        assert client.json(f"/api/runs/{run.pk}")["status"] == "waiting"
        page = client.json(f"{route}?from={asked['seq']}")
        assert (page["status"], page["events"], page["done"]) == ("waiting", [], False)
        with client.stream(route, Last_Event_ID=str(asked["seq"])) as late:  # not 204: it waits
            sockets = [
                others.submit(watch, client, f"/ws/runs/{run.pk}?from={after}")
                for after in (0, asked["seq"])
            ]
            answers = [
                others.submit(client.http.post, f"/api/runs/{run.pk}/answer", json={"answer": text})
                for text in ("yes", "no")
            ]
            assert sorted(answer.result().status_code for answer in answers) == [202, 409]
            whole, after = first.rest(), late.rest()

    assert [event["type"] for event in whole.events] == TYPES
    assert whole.seqs == list(range(1, len(TYPES) + 1))
    assert after.events == whole.events[asked["seq"] :] == sockets[1].result().events
    assert sockets[0].result().events == whole.events
    assert client.follow(route).events == whole.events
    assert whole.text in ("well? yes ", "well? no ")
    with client.open(f"{route}?from={len(TYPES)}") as response:
        assert response.status_code == 204


def test_a_stream_of_a_waiting_run_ends_with_a_stop(
    client: Client, user: Any, worker: None
) -> None:
    run = questioning(user)
    with client.stream(f"/api/runs/{run.pk}/events") as stream:
        stream.until("input_required")
        stop_run(run)
        seen = stream.rest()

    assert [event["type"] for event in seen.events] == [*TYPES[:5], "complete"]
    assert seen.events[-1]["status"] == "cancelled"
    assert seen.events[-1]["message_id"] == str(run.reply_message_id)
