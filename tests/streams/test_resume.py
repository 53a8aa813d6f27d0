"""A client that is cut off anywhere comes back with its cursor and has the exact text."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

from agentruns import enqueue_run
from agentruns.models import AgentRun
from tests.support import PATIENCE_SECONDS

from .conftest import client_of
from .servers import WebServer
from .told import Told
from .viewers import CUT, Client, Event, Seen

NUMBERS = 40
TEXT = "".join(f"{number} " for number in range(NUMBERS))


def counting(user: Any) -> AgentRun:
    """A run that a real worker carries out."""
    return enqueue_run(
        conversation=None,
        user=user,
        content="count",
        agent="counting",
        metadata={"to": NUMBERS, "pause": 0.02},
    )


def one_event(client: Client, url: str, seen: Seen) -> None:
    """Connect, take one event, and drop the connection."""
    with client.open(url, **({"Last-Event-ID": str(seen.cursor)} if seen.events else {})) as answer:
        buffer = ""
        for chunk in answer.iter_raw():
            buffer += chunk.decode("ascii")
            if "id: " in buffer and buffer.endswith("\n\n"):
                break
    frames = [frame for frame in buffer.split("\n\n") if frame.startswith("id: ")]
    seen.events.append(json.loads(frames[0].split("data: ")[1]))


def test_a_client_that_drops_at_every_event_has_the_exact_text(
    client: Client, user: Any, worker: None
) -> None:
    run = counting(user)
    seen = Seen()

    while not seen.ended:
        one_event(client, f"/api/runs/{run.pk}/events", seen)

    assert seen.text == TEXT
    assert seen.seqs == list(range(1, len(seen.seqs) + 1))
    with client.open(f"/api/runs/{run.pk}/events", Last_Event_ID=str(seen.cursor)) as response:
        assert response.status_code == 204


def test_a_socket_that_drops_at_every_event_has_the_exact_text(
    client: Client, user: Any, worker: None
) -> None:
    run = counting(user)
    seen = Seen()

    while not seen.ended:
        with client.socket(f"/ws/runs/{run.pk}?from={seen.cursor}") as socket:
            event: Event = {"type": "keepalive"}
            while event["type"] == "keepalive":
                event = json.loads(socket.recv(timeout=PATIENCE_SECONDS))
            seen.events.append(event)

    assert seen.text == TEXT
    assert seen.seqs == list(range(1, len(seen.seqs) + 1))


def test_viewers_of_several_servers_see_the_same(shared: dict[str, WebServer], user: Any) -> None:
    """No server has seen the run before; whoever joins when has everything."""
    told = Told(user)
    clients = [client_of(server, user) for server in shared.values()]
    with contextlib.ExitStack() as stack:
        streams = [stack.enter_context(client.stream(told.events)) for client in clients]
        for stream in streams:
            stream.until("run_started")
        told.say("a", "b")
        late = stack.enter_context(clients[0].stream(f"{told.events}?from=4"))
        told.say("c")
        told.end()

        assert [stream.rest().text for stream in (*streams, late)] == ["abc", "abc", "bc"]


def test_a_stream_that_is_open_when_its_server_is_told_to_end_is_cut_and_resumed_elsewhere(
    kind: str, start: Callable[..., Any], shared: dict[str, WebServer], user: Any
) -> None:
    """A deploy: the process ends at once, and nobody takes the cut for the end of the run."""
    server, told = start(kind), Told(user)
    told.say("before ")
    client, elsewhere = client_of(server, user), client_of(shared[kind], user)
    with contextlib.ExitStack() as stack:
        streams = [stack.enter_context(client.stream(told.events)) for _ in range(50)]
        socket = stack.enter_context(client.socket(told.socket))
        for stream in streams:
            stream.until("content_delta")

        server.terminate()  # waits, for less than a stream is open

        for stream in streams:
            with contextlib.suppress(*CUT):
                stream.rest()
                raise AssertionError("a cut stream looked as if it had ended")
        list_until_closed(socket)
        assert socket.close_code != 1000

    told.say("after")
    told.end()
    for stream in streams[:3]:
        seen = elsewhere.follow(told.events, Last_Event_ID=str(stream.seen.cursor))
        assert (stream.seen.text, seen.text) == ("before ", "after")


def list_until_closed(socket: Any) -> None:
    with contextlib.suppress(Exception):
        while True:
            socket.recv(timeout=PATIENCE_SECONDS)
