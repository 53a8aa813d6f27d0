"""What happens to open streams, and to new ones, when the database goes away."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from agentruns import enqueue_run

from .conftest import Database, client_of, new_user
from .servers import WebServer, until
from .told import Told
from .viewers import CUT, Client, EventStream, Seen

NUMBERS = 200
TEXT = "".join(f"{number} " for number in range(NUMBERS))


@pytest.fixture
def own(kind: str, start: Callable[..., Any]) -> WebServer:
    """A server of the test's own, whose poll alone would be too slow for it."""
    server: WebServer = start(kind, POLL_SECONDS=600)
    return server


def counted(user: Any, pause: float = 0.01) -> str:
    """The events path of a run that a real worker carries out."""
    metadata = {"to": NUMBERS, "pause": pause}
    run = enqueue_run(
        conversation=None, user=user, content="count", agent="counting", metadata=metadata
    )
    return f"/api/runs/{run.pk}/events"


class Background:
    """A stream that is read in a thread of its own."""

    def __init__(self, client: Client, url: str) -> None:
        self.stream: EventStream | None = None
        self._client, self._url = client, url
        self._pool = ThreadPoolExecutor(1)
        self._end = self._pool.submit(self._read)

    def _read(self) -> Seen:
        with self._client.stream(self._url) as stream:
            self.stream = stream
            return stream.rest()

    @property
    def seen(self) -> Seen:
        return self.stream.seen if self.stream else Seen()

    def end(self) -> Seen:
        """What it has seen when the stream has ended, cleanly."""
        seen = self._end.result(90)
        self._pool.shutdown()
        return seen


def test_the_hubs_lost_connection_is_replaced_and_what_was_missed_is_read(
    own: WebServer, user: Any, database: Database
) -> None:
    told = Told(user)
    with client_of(own, user).stream(told.events) as stream:
        stream.until("run_started")
        mine = until(lambda: hubs_of(database, own), "the hub to listen")
        assert database.terminate(f"pid = {mine[0]}") == 1
        told.say("missed")  # nobody hears it: the poll is 10 minutes away

        stream.until("content_delta", text="missed")
        until(lambda: hubs_of(database, own) not in ([], mine), "another hub")
        told.say("heard")
        stream.until("content_delta", text="heard")
        told.end()
        assert stream.rest().text == "missedheard"


def hubs_of(database: Database, server: WebServer) -> list[int]:
    ports = database.ports(server.pid)
    rows = database.execute(
        "SELECT pid, client_port FROM pg_stat_activity WHERE application_name = 'agentruns hub'"
    )
    return [pid for pid, port in rows if port in ports]


def test_streams_go_on_when_every_connection_was_terminated(
    own: WebServer, user: Any, database: Database, start: Callable[..., Any]
) -> None:
    start("worker")
    streams = [Background(client_of(own, user), counted(user)) for _ in range(3)]
    until(lambda: all(len(s.seen.text) > 20 for s in streams), "all to be on their way")

    assert database.terminate() > 3
    until(lambda: all(len(s.seen.text) > 200 for s in streams), "all to go on")
    assert database.terminate() > 3

    for stream in streams:
        seen = stream.end()
        assert seen.text == TEXT
        assert seen.seqs == list(range(1, len(seen.seqs) + 1))


def test_streams_stay_open_while_the_database_is_away_and_go_on(
    own: WebServer, user: Any, database: Database, start: Callable[..., Any]
) -> None:
    start("worker")
    url = counted(user, pause=0.03)
    viewers = [Background(client_of(own, user), url) for _ in range(2)]
    until(lambda: all(len(v.seen.text) > 20 for v in viewers), "both to be on their way")
    waiting = Told(user)
    with client_of(own, user).stream(waiting.events) as idle:
        idle.until("run_started")

        with database.away():
            for _ in range(3):
                assert idle.comment() == ": keepalive"

        waiting.say("back")
        assert idle.until("content_delta")["delta"] == "back"
        waiting.end()
        assert idle.rest().ended
    for viewer in viewers:
        seen = viewer.end()
        assert seen.text == TEXT
        assert seen.seqs == list(range(1, len(seen.seqs) + 1))


def test_a_new_viewer_waits_for_the_database_then_gets_a_503(
    own: WebServer, user: Any, database: Database
) -> None:
    told = Told(user)
    told.end()
    client = client_of(own, user)
    assert client.follow(told.events).ended  # everything is set up

    with database.away():
        for accept in ("text/event-stream", "application/json"):
            with client.open(told.events, Accept=accept) as response:
                assert response.status_code == 503
                assert int(response.headers["retry-after"]) > 0
                assert json.loads(response.read())["code"] == "unavailable"
        for method, path in (("GET", f"/api/runs/{told.id}"), ("POST", "/api/runs")):
            answer = client.http.request(method, path, json={"content": "x"})
            assert answer.status_code == 503
            assert int(answer.headers["retry-after"]) > 0
        with client.socket(told.socket) as socket:
            list(socket)
        assert socket.close_code == 4503

    assert client.follow(told.events).ended


def test_a_new_viewer_who_waits_is_let_in_when_the_database_is_back(
    own: WebServer, user: Any, database: Database
) -> None:
    told = Told(user)
    told.end()
    client = client_of(own, user)
    asked = threading.Event()

    def ask() -> Seen:
        asked.set()
        return client.follow(told.events)

    with ThreadPoolExecutor(1) as pool:
        with database.away():
            waiting = pool.submit(ask)
            assert asked.wait(10)
            assert not waiting.done()

        assert waiting.result(90).ended


@pytest.mark.parametrize("fault", ["read_page", "read_pages"])
def test_nothing_that_goes_wrong_in_the_tail_ends_a_stream(
    kind: str, start: Callable[..., Any], user: Any, fault: str
) -> None:
    """Under daphne an exception would leave the client waiting for ever."""
    server = start(kind, application="tests.streams.sites.faulty:application", FAULT=fault)
    told = Told(user)
    with client_of(server, user).stream(told.events) as stream:
        stream.until("run_started")
        told.say("a", "b")
        stream.until("content_delta", text="b")
        told.end()
        assert stream.rest().text == "ab"
    assert server.log.count("injected") > 1


def test_a_stream_that_fails_beyond_repair_is_cut_and_not_left_hanging(
    kind: str, start: Callable[..., Any], user: Any
) -> None:
    server = start(kind, application="tests.streams.sites.faulty:application", FAULT="_body")
    told = Told(user)
    client = client_of(server, user)

    with client.stream(told.events) as stream, pytest.raises(CUT):
        stream.rest()


def test_without_signals_the_table_is_polled(
    kind: str, start: Callable[..., Any], user: Any, database: Database
) -> None:
    server = start(kind, LISTEN_DATABASE=None, STREAM_POLL_SECONDS=0.2, POLL_SECONDS=600)
    told = Told(user)
    with client_of(server, user).stream(told.events) as stream:
        stream.until("run_started")
        told.say("found")
        stream.until("content_delta", text="found")
        assert hubs_of(database, server) == []
        told.end()
        assert stream.rest().text == "found"


def test_joining_viewers_do_not_put_off_the_poll_for_the_others(
    start: Callable[..., Any], user: Any
) -> None:
    server = start("uvicorn", LISTEN_DATABASE=None, STREAM_POLL_SECONDS=0.5, POLL_SECONDS=600)
    told, other, found = Told(user), Told(user), threading.Event()

    def join_and_leave() -> int:
        client, times = client_of(server, user), 0
        while not found.is_set():
            with client.stream(other.events) as stream:
                stream.until("run_started")
            times += 1
        return times

    with client_of(server, user).stream(told.events) as stream, ThreadPoolExecutor(1) as pool:
        stream.until("run_started")
        joining = pool.submit(join_and_leave)
        told.say("found")
        stream.until("content_delta", text="found")
        found.set()
        assert joining.result(90) > 0


def test_a_deleted_runs_viewers_are_sent_away(kind: str, start: Callable[..., Any]) -> None:
    own = start(kind, POLL_SECONDS=0.3)
    user = new_user()
    told = Told(user)
    client = client_of(own, user)
    with client.stream(told.events) as stream:
        stream.until("run_started")
        told.row.events.all().delete()
        told.row.delete()

        assert not stream.rest().ended
    with client.open(told.events) as response:
        assert response.status_code == 404
