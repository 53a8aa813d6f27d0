"""What happens to open streams, and to new ones, when the database goes away."""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from agentruns import enqueue_run
from tests.support import until

from .conftest import Database, client_of, starter
from .servers import WebServer
from .told import Told
from .viewers import CUT, Client, EventStream, Seen

NUMBERS = 200
TEXT = "".join(f"{number} " for number in range(NUMBERS))


@pytest.fixture(scope="module")
def special(database: Database, tmp_path_factory: Any) -> Iterator[Callable[..., WebServer]]:
    """A server with settings of its own, started when it is first asked for."""
    with starter(database, tmp_path_factory.mktemp("special")) as start:
        yield functools.cache(start)


@pytest.fixture
def faulty(kind: str, special: Callable[..., WebServer]) -> WebServer:
    return special(kind, application="tests.streams.sites.faulty:application", POLL_SECONDS=600)


@pytest.fixture
def deaf(special: Callable[..., WebServer]) -> WebServer:
    """A server to which no signal can arrive."""
    return special("uvicorn", LISTEN_DATABASE=None, STREAM_POLL_SECONDS=0.5, POLL_SECONDS=600)


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
    server: WebServer, user: Any, database: Database
) -> None:
    told = Told(user)
    with client_of(server, user).stream(told.events) as stream:
        stream.until("run_started")
        mine = until(lambda: hubs_of(database, server), "the hub to listen")
        assert database.terminate(f"pid = {mine[0]}") == 1
        told.say("missed")  # nobody hears it: the poll is 10 minutes away

        stream.until("content_delta", text="missed")
        until(lambda: hubs_of(database, server) not in ([], mine), "another hub")
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
    server: WebServer, user: Any, database: Database, worker: None
) -> None:
    streams = [Background(client_of(server, user), counted(user)) for _ in range(3)]
    until(lambda: all(len(s.seen.text) > 20 for s in streams), "all to be on their way")

    assert database.terminate() > 3
    until(lambda: all(len(s.seen.text) > 200 for s in streams), "all to go on")
    assert database.terminate() > 3

    for stream in streams:
        seen = stream.end()
        assert seen.text == TEXT
        assert seen.seqs == list(range(1, len(seen.seqs) + 1))


def test_streams_stay_open_while_the_database_is_away_and_go_on(
    server: WebServer, user: Any, database: Database, worker: None
) -> None:
    url = counted(user, pause=0.03)
    viewers = [Background(client_of(server, user), url) for _ in range(2)]
    until(lambda: all(len(v.seen.text) > 20 for v in viewers), "both to be on their way")
    waiting = Told(user)
    with client_of(server, user).stream(waiting.events) as idle:
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
    server: WebServer, user: Any, database: Database
) -> None:
    told = Told(user)
    told.end()
    client = client_of(server, user)
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
        assert client.close_code(told.socket) == 4503

    assert client.follow(told.events).ended


def test_a_new_viewer_who_waits_is_let_in_when_the_database_is_back(
    server: WebServer, user: Any, database: Database
) -> None:
    told = Told(user)
    told.end()
    client = client_of(server, user)
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


def test_nothing_that_goes_wrong_in_the_tail_ends_a_stream(faulty: WebServer, user: Any) -> None:
    """Every other read fails, in the viewer's page and in the reader. Under daphne an exception
    would leave the client waiting for ever.
    """
    told = Told(user)
    with client_of(faulty, user).stream(told.events) as stream:
        stream.until("run_started")
        told.say("a", "b")
        stream.until("content_delta", text="b")
        told.end()
        assert stream.rest().text == "ab"
    assert faulty.log.count("injected") > 1


def test_a_stream_that_fails_beyond_repair_is_cut_and_not_left_hanging(
    faulty: WebServer, user: Any
) -> None:
    told = Told(user)
    told.say("unsendable")

    with client_of(faulty, user).stream(told.events) as stream, pytest.raises(CUT):
        stream.rest()


def test_without_signals_the_table_is_polled(
    deaf: WebServer, user: Any, database: Database
) -> None:
    told = Told(user)
    with client_of(deaf, user).stream(told.events) as stream:
        stream.until("run_started")
        told.say("found")
        stream.until("content_delta", text="found")
        assert hubs_of(database, deaf) == []
        told.end()
        assert stream.rest().text == "found"


def test_joining_viewers_do_not_put_off_the_poll_for_the_others(deaf: WebServer, user: Any) -> None:
    told, other, found = Told(user), Told(user), threading.Event()
    client = client_of(deaf, user)

    def join_and_leave() -> int:
        times = 0
        while not found.is_set():
            with client.stream(other.events) as stream:
                stream.until("run_started")
            times += 1
        return times

    with client_of(deaf, user).stream(told.events) as stream, ThreadPoolExecutor(1) as pool:
        stream.until("run_started")
        joining = pool.submit(join_and_leave)
        told.say("found")
        stream.until("content_delta", text="found")
        found.set()
        assert joining.result(90) > 0


def test_a_deleted_runs_viewers_are_sent_away(deaf: WebServer, user: Any) -> None:
    told, client = Told(user), client_of(deaf, user)
    with client.stream(told.events) as stream:
        stream.until("run_started")
        told.row.events.all().delete()
        told.row.delete()

        assert not stream.rest().ended
    with client.open(told.events) as response:
        assert response.status_code == 404
