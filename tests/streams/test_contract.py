"""Section by section what a client sees, from outside, on both servers."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from agentruns.models import RunStatus
from tests.support import PATIENCE_SECONDS

from .conftest import client_of, new_user
from .told import Told
from .viewers import Client

ODD = [
    "line\nbreak",
    "\u2028sep\u2029",
    "nel\x85",
    "vt\x0b\x0c",
    "é漢😀",
    'quo"te\\',
    "\r\n",
    "\x7f",
]


@pytest.fixture
def told(user: Any) -> Told:
    return Told(user)


def ended(user: Any, *texts: str) -> Told:
    told = Told(user)
    told.say(*texts)
    told.end()
    return told


def test_a_stream_replays_then_goes_on_live_and_ends_after_complete(
    client: Client, told: Told
) -> None:
    told.say("Hel")
    with client.stream(told.events) as stream:
        stream.until("content_delta", text="Hel")
        told.say("lo", " there")
        stream.until("content_delta", text="there")
        told.end()
        seen = stream.rest()

    assert seen.text == "Hello there"
    assert seen.seqs == [1, 2, 3, 4, 5, 6, 7]
    assert [event["type"] for event in seen.events[:3]] == [
        "user_message_created",
        "run_queued",
        "run_started",
    ]
    assert seen.events[-1] == {
        "type": "complete",
        "seq": 7,
        "status": "completed",
        "error": None,
        "message_id": str(told.refreshed().reply_message_id),
    }


def test_a_stream_says_how_it_is_to_be_treated(client: Client, user: Any) -> None:
    told = ended(user, "x" * 5000)

    with client.stream(told.events, Accept_Encoding="gzip, br") as stream:
        stream.rest()

    headers = stream.response.headers
    assert headers["content-type"].startswith("text/event-stream")
    assert headers["cache-control"] == "no-cache, no-transform"
    assert headers["x-accel-buffering"] == "no"
    assert "content-encoding" not in headers
    assert "content-length" not in headers
    assert b"x" * 5000 in stream.raw


def test_the_first_frames_come_at_once_to_a_client_that_takes_gzip(
    client: Client, told: Told
) -> None:
    with client.stream(told.events, Accept_Encoding="gzip") as stream:
        assert stream.until("run_started")["seq"] == 3  # the run goes on, nothing more is written
    told.end()


def test_frames_are_ascii_on_one_data_line_whatever_the_text(client: Client, user: Any) -> None:
    told = ended(user, *ODD)

    with client.stream(told.events) as stream:
        seen = stream.rest()

    assert seen.text == "".join(ODD)
    lines = stream.raw.decode().splitlines()  # splits at everything that anybody takes for a break
    assert [line for line in lines if line and not line.startswith(("id: ", "data: {"))] == []
    with httpx.stream("GET", client.server.url + told.events, headers=client.headers) as naive:
        datas = [line[6:] for line in naive.iter_lines() if line.startswith("data: ")]
    assert "".join(json.loads(data).get("delta", "") for data in datas) == "".join(ODD)


def test_a_silent_stream_gets_comments_without_an_id(client: Client, told: Told) -> None:
    with client.stream(told.events) as stream:
        assert stream.comment() == ": keepalive"
        assert stream.comment() == ": keepalive"
        told.end()
        assert stream.rest().seqs == [1, 2, 3, 4]


@pytest.mark.parametrize("cursor", [0, 1, 3, 4, 5])
def test_a_stream_begins_after_its_cursor(client: Client, user: Any, cursor: int) -> None:
    told = ended(user, "a", "b")

    assert client.follow(f"{told.events}?from={cursor}").seqs == list(range(cursor + 1, 7))


def test_the_last_event_id_wins_over_the_url(client: Client, user: Any) -> None:
    told = ended(user, "a", "b")

    assert client.follow(f"{told.events}?from=1", Last_Event_ID="4").seqs == [5, 6]


@pytest.mark.parametrize("beyond", [6, 7, 10**9, 2**31, 10**40])
def test_a_cursor_at_or_past_the_end_of_an_ended_run_gets_204(
    client: Client, user: Any, beyond: int
) -> None:
    told = ended(user, "a", "b")

    with client.open(f"{told.events}?from={beyond}") as response:
        assert (response.status_code, response.read()) == (204, b"")
    with client.open(told.events, Last_Event_ID=str(beyond)) as response:
        assert (response.status_code, response.read()) == (204, b"")
    assert client.close_code(f"{told.socket}?from={beyond}") == 1000
    page = client.json(f"{told.events}?from={beyond}")
    assert (page["events"], page["done"], page["last_seq"]) == ([], True, 6)


@pytest.mark.parametrize("beyond", [50, 10**40])
def test_a_cursor_past_a_running_runs_journal_still_gets_the_end(
    client: Client, told: Told, beyond: int
) -> None:
    with (
        client.stream(f"{told.events}?from={beyond}") as stream,
        client.socket(f"{told.socket}?from={beyond}") as socket,
    ):
        stream.comment()  # it waits now
        assert json.loads(socket.recv(timeout=PATIENCE_SECONDS)) == {"type": "keepalive"}
        told.say("a")
        told.end()

        assert [event["type"] for event in stream.rest().events] == ["complete"]
        frames = [json.loads(frame) for frame in socket]
        assert [frame["type"] for frame in frames if frame["type"] != "keepalive"] == ["complete"]


@pytest.mark.parametrize("bad", ["", "-1", "1.5", "x", "+1", "%31%20", "%D9%A1", "1_0", "0x1"])
def test_a_cursor_that_is_no_whole_number_is_a_400(client: Client, told: Told, bad: str) -> None:
    with client.open(f"{told.events}?from={bad}") as response:
        assert response.status_code == 400
        assert list(json.loads(response.read())) == ["from"]
    answer = client.http.get(f"{told.events}?from={bad}", headers={"Accept": "application/json"})
    assert (answer.status_code, list(answer.json())) == (400, ["from"])
    assert client.close_code(f"{told.socket}?from={bad}") == 4400


def test_a_bad_last_event_id_is_a_400(client: Client, told: Told) -> None:
    with client.open(told.events, Last_Event_ID="abc") as response:
        assert response.status_code == 400


def test_an_ended_run_whose_journal_lacks_its_end_gets_it_from_the_row(
    client: Client, user: Any
) -> None:
    told = Told(user)
    told.say("a")
    told.end(RunStatus.FAILED, error={"code": "timeout", "message": "Too long."})
    told.row.events.filter(type="complete").delete()

    [last] = client.follow(f"{told.events}?from=4").events

    assert last == {
        "type": "complete",
        "seq": 5,
        "status": "failed",
        "error": {"code": "timeout", "message": "Too long."},
        "message_id": str(told.row.reply_message_id),
    }
    with client.open(f"{told.events}?from=5") as response:
        assert response.status_code == 204


def test_the_json_form_pages_through_a_run(client: Client, told: Told) -> None:
    told.say("a", "b")
    first = client.json(f"{told.events}?limit=3")
    second = client.json(f"{told.events}?from={first['cursor']}")
    told.end()
    third = client.json(f"{told.events}?from={second['cursor']}")

    assert {key: first[key] for key in first if key != "events"} == {
        "run_id": str(told.id),
        "status": "running",
        "cursor": 3,
        "last_seq": 5,
        "done": False,
    }
    assert (second["cursor"], second["done"]) == (5, False)
    assert (third["status"], third["cursor"], third["done"]) == ("completed", 6, True)
    events = first["events"] + second["events"] + third["events"]
    assert [event["seq"] for event in events] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        (None, "text/event-stream"),
        ("*/*", "text/event-stream"),
        ("text/event-stream", "text/event-stream"),
        ("application/json, text/event-stream", "text/event-stream"),
        ("text/*", "text/event-stream"),
        ("application/json", "application/json"),
        ("application/json, text/plain, */*", "application/json"),
        ("text/event-stream;q=0.5, application/json", "application/json"),
        ("text/event-stream;q=0, */*", "application/json"),
    ],
)
def test_the_accept_header_chooses_the_form(
    client: Client, user: Any, accept: str | None, form: str
) -> None:
    told = ended(user, "a")
    del client.http.headers["Accept"]

    answer = client.http.get(told.events, headers={"Accept": accept} if accept else {})

    assert answer.status_code == 200
    assert answer.headers["content-type"].partition(";")[0] == form


def test_other_methods_than_get(client: Client, told: Told) -> None:
    for accept in ("text/event-stream", "application/json"):
        head = client.http.head(told.events, headers={"Accept": accept})
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-type"].partition(";")[0] == accept
    options = client.http.options(told.events, headers={"Accept": "text/event-stream"})
    assert options.status_code == 200
    for method in ("POST", "PUT", "DELETE"):
        answer = client.http.request(method, told.events, headers={"Accept": "text/event-stream"})
        assert answer.status_code == 405
        assert "GET" in answer.headers["allow"]


def test_a_run_that_is_foreign_missing_or_malformed_is_the_same_404(
    client: Client, told: Told, user: Any
) -> None:
    staff = new_user("staff")
    staff.is_staff = staff.is_superuser = True
    staff.save()
    stranger = client_of(client.server, staff)
    bodies = set()
    for viewer, run_id in (
        (stranger, told.id),
        (client, "01890000-0000-7000-8000-000000000000"),
        (client, "nonsense"),
    ):
        for accept in ("text/event-stream", "application/json"):
            with viewer.open(f"/api/runs/{run_id}/events", Accept=accept) as response:
                assert response.status_code == 404
                bodies.add(response.read())
        assert viewer.close_code(f"/ws/runs/{run_id}") == 4404  # accepted first
    assert {json.loads(body)["code"] for body in bodies} == {"run_not_found"}
    assert len(bodies) == 1


def test_both_paths_work_with_a_final_slash(client: Client, user: Any) -> None:
    told = ended(user, "a")

    assert client.follow(f"{told.events}/").text == "a"
    with client.socket(f"{told.socket}/") as socket:
        assert [json.loads(frame)["seq"] for frame in socket] == [1, 2, 3, 4, 5]


def test_a_socket_gets_each_event_as_a_text_frame_and_is_closed_at_the_end(
    client: Client, told: Told
) -> None:
    with client.socket(f"{told.socket}?from=2") as socket:
        first = socket.recv(timeout=PATIENCE_SECONDS)
        assert isinstance(first, str)
        assert json.loads(first) == {"type": "run_started", "seq": 3, "attempt": 1}
        assert json.loads(socket.recv(timeout=PATIENCE_SECONDS)) == {"type": "keepalive"}
        told.say(*ODD)
        told.end()
        frames = [json.loads(frame) for frame in socket]

    text = "".join(frame.get("delta", "") for frame in frames)
    assert text == "".join(ODD)
    assert frames[-1]["type"] == "complete"
    assert socket.close_code == 1000


def test_a_socket_that_asks_for_a_stop_has_the_run_stopped(client: Client, told: Told) -> None:
    with client.socket(told.socket) as socket:
        for odd in ("", "null", "[]", "{", '{"type": "hello"}', "[" * 10_000, b"\x00\xff"):
            socket.send(odd)
        socket.recv(timeout=PATIENCE_SECONDS)
        assert not told.refreshed().cancel_requested

        socket.send('{"type": "stop"}')

        while json.loads(socket.recv(timeout=PATIENCE_SECONDS))["type"] != "keepalive":
            pass
        assert told.refreshed().cancel_requested


def test_a_stop_of_a_waiting_run_ends_its_sockets(client: Client, user: Any) -> None:
    told = Told(user, start=False)
    with client.socket(told.socket) as socket:
        socket.send('{"type": "stop"}')
        frames = [json.loads(frame) for frame in socket]

    last = [frame for frame in frames if frame["type"] != "keepalive"][-1]
    assert (last["type"], last["seq"], last["status"]) == ("complete", 3, "cancelled")
    assert socket.close_code == 1000
