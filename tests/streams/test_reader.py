"""One reader for all viewers of a process: what they cost, and what they miss (nothing)."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from django.test import override_settings

from agentruns import db
from agentruns import tail as tail_module
from agentruns.events import Frame, read_page
from agentruns.reader import close_reader, get_reader
from agentruns.tail import KEEPALIVE, tail
from agentruns.viewer import MAX_WAITING_CHARS
from tests.support import until

from .conftest import Database
from .servers import ROOT
from .told import Told

CHUNK = "0123456789abcdef" * 1875  # 30,000 characters


class Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def close(self) -> None:
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(10)
            self.loop.close()


@pytest.fixture(autouse=True)
def _reader(tables: None) -> Iterator[None]:
    """Only hints wake it: the poll is far away."""
    with override_settings(AGENTRUNS={"POLL_SECONDS": 600, "KEEPALIVE_SECONDS": 600}):
        yield
        close_reader(timeout=30)
        db.close_pool()


@pytest.fixture
def make_loop() -> Iterator[Callable[[], Loop]]:
    loops: list[Loop] = []

    def make() -> Loop:
        loops.append(Loop())
        return loops[-1]

    yield make
    for loop in loops:
        loop.close()


@pytest.fixture
def loop(make_loop: Callable[[], Loop]) -> Loop:
    return make_loop()


class View:
    """One viewer; `gate` holds it up at its next batch."""

    def __init__(self, loop: Loop, told: Told, after: int = 0) -> None:
        self.frames: list[Frame] = []
        self.batches: list[int] = []
        self.gate = threading.Event()
        self.gate.set()
        self._end = loop.start(self._read(told, after))

    async def _read(self, told: Told, after: int) -> None:
        async for batch in tail(told.id, after):
            if batch != KEEPALIVE:
                self.frames += batch
                self.batches.append(sum(len(frame.json) for frame in batch))
            while not self.gate.is_set():
                await asyncio.sleep(0.01)

    def seen(self, seq: int) -> None:
        until(lambda: self.frames and self.frames[-1].seq >= seq, f"event {seq}")

    def end(self) -> list[int]:
        """The seqs that it saw, when its tail has ended."""
        self._end.result(60)
        return [frame.seq for frame in self.frames]

    @property
    def text(self) -> str:
        return "".join(json.loads(frame.json).get("delta", "") for frame in self.frames)


@pytest.mark.parametrize("count", [50, 500])
def test_reads_grow_with_events_and_not_with_viewers(loop: Loop, user: Any, count: int) -> None:
    tolds = [Told(user) for _ in range(5)]
    views = [View(loop, tolds[number % 5]) for number in range(count)]
    for view in views:
        view.seen(3)
    before = get_reader().reads

    for number in range(10):
        for told in tolds:
            told.say(str(number))
    for told in tolds:
        told.end()
    for view in views:
        view.end()

    assert {view.text for view in views} == {"0123456789"}
    assert get_reader().reads - before <= 55  # one for each hint, at the most
    assert get_reader().viewers == 0


def test_an_event_between_the_page_and_the_hand_over_is_not_missed(
    loop: Loop, user: Any, monkeypatch: Any
) -> None:
    told = Told(user)
    reads: list[int] = []

    def read_and_be_overtaken(*args: Any) -> Any:
        page = read_page(*args)
        reads.append(1)
        if len(reads) == 1:
            told.say("overtaken")
            hints = threading.Event()  # the hint comes while nobody is at any position
            hints.wait(0.3)
        return page

    monkeypatch.setattr(tail_module, "read_page", read_and_be_overtaken)
    view = View(loop, told)

    view.seen(4)
    told.end()
    assert view.end() == [1, 2, 3, 4, 5]


def test_viewers_who_join_and_leave_at_any_moment_miss_nothing(loop: Loop, user: Any) -> None:
    told, views = Told(user), []
    for number in range(150):
        told.say(str(number))
        views.append(View(loop, told, after=number % 7))
    told.end()

    for number, view in enumerate(views):
        assert view.end() == list(range(number % 7 + 1, 155))


def test_a_viewer_who_reads_slowly_holds_little_and_catches_up(loop: Loop, user: Any) -> None:
    told = Told(user)
    slow, quick = View(loop, told), View(loop, told)
    slow.seen(3)
    slow.gate.clear()
    told.say("x")
    slow.seen(4)  # and there it stays
    for _ in range(40):
        told.say(CHUNK)
    told.end()
    quick.end()
    [held] = (viewer for viewers in get_reader()._viewers.values() for viewer in viewers)
    assert held._chars <= MAX_WAITING_CHARS

    slow.gate.set()

    assert slow.end() == quick.end() == list(range(1, 46))
    assert slow.text == quick.text == "x" + CHUNK * 40


def test_a_page_is_no_larger_than_a_viewer_may_hold(loop: Loop, user: Any) -> None:
    told = Told(user)
    told.say(*[CHUNK] * 60)
    told.end()

    view = View(loop, told)

    assert view.end() == list(range(1, 65))
    assert max(view.batches) <= MAX_WAITING_CHARS


def test_a_run_of_many_small_events_comes_in_full_pages(loop: Loop, user: Any) -> None:
    told = Told(user)
    told.say(*["."] * 1200)
    told.end()

    view = View(loop, told)

    assert view.end() == list(range(1, 1205))
    assert len(view.batches) == 3


def test_a_loop_that_is_held_up_holds_up_no_other(make_loop: Callable[[], Loop], user: Any) -> None:
    stuck, well, told = make_loop(), make_loop(), Told(user)
    views = [View(stuck, told), View(well, told)]
    for view in views:
        view.seen(3)
    release = threading.Event()
    stuck.loop.call_soon_threadsafe(release.wait, 60)

    told.say("a", "b")
    views[1].seen(5)

    assert views[0].text == ""
    release.set()
    told.end()
    assert [view.end() for view in views] == [[1, 2, 3, 4, 5, 6]] * 2


def test_a_loop_that_was_closed_takes_its_viewers_with_it(
    make_loop: Callable[[], Loop], user: Any
) -> None:
    gone, well, told = make_loop(), make_loop(), Told(user)
    lost, view = View(gone, told), View(well, told)
    lost.seen(3)
    view.seen(3)
    tasks = asyncio.all_tasks(gone.loop)
    gone.close()

    told.say("on")
    view.seen(4)

    assert get_reader().viewers == 1
    told.end()
    assert view.end() == [1, 2, 3, 4, 5]
    for task in tasks:  # nobody will: its loop is gone
        task._log_destroy_pending = False  # type: ignore[attr-defined]


@pytest.mark.parametrize("after", [5, 6, 100])
def test_a_tail_always_tells_the_end(loop: Loop, user: Any, after: int) -> None:
    told = Told(user)
    told.say("a")
    told.end()

    assert View(loop, told, after).end() == [5]


def test_a_tail_that_is_cancelled_leaves_nothing_behind(loop: Loop, user: Any) -> None:
    told = Told(user)
    view = View(loop, told)
    view.seen(3)
    assert get_reader().viewers == 1

    view._end.cancel()

    until(lambda: get_reader().viewers == 0, "the viewer to leave")
    until(lambda: not asyncio.all_tasks(loop.loop), "its task to end")


def test_a_forked_process_has_a_reader_of_its_own(user: Any, database: Database) -> None:
    told, waiting = Told(user), Told(user, start=False)
    told.end()
    arguments = ["-m", "tests.streams.sites.forking", str(told.id), str(waiting.id)]

    ended = subprocess.run(
        [sys.executable, "-W", "ignore", *arguments],
        cwd=ROOT,
        env={**os.environ, "DATABASE_URL": database.url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert ended.stdout.split() == ["parent:4", "child:3"], ended.stderr
