"""Read events from a cursor, as they come.

Rung 6: the viewers of a process share one reader. It reads the new rows of all runs that were
hinted at in one statement and hands them out in memory; a viewer that only waits costs neither a
connection nor a thread nor a query. A viewer catches up by itself, in pages, where it joins late or
reads too slowly: what it has waiting is bounded, and `seq` has no gaps, so that one who missed
something knows it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Iterable
from typing import Literal
from uuid import UUID

from . import db, metrics, wake
from .conf import Config, get_config
from .events import Frame, Page, read_page, read_pages
from .hub import Hub

logger = logging.getLogger(__name__)

PAGE = 500
"""Events in one page of a catch-up, or for one run in one read."""
MAX_RUNS_PER_READ = 500
MAX_WAITING_CHARS = 262_144
"""What one viewer may have waiting in memory before it has to catch up from the table."""
RETRY_SECONDS = 0.2, 2.0

KEEPALIVE: Literal["keepalive"] = "keepalive"


class Viewer:
    """One open tail: the frames that wait for it. Used by the reader's thread through the viewer's
    event loop.
    """

    def __init__(self, run_id: UUID) -> None:
        self.run_id = run_id
        self.loop = asyncio.get_running_loop()
        self.behind = True
        """Frames were left out, or may have been: the table has them."""
        self._frames: deque[Frame] = deque()
        self._chars = 0
        self._changed = asyncio.Event()

    def deliver(self, frames: Iterable[Frame]) -> None:
        for frame in frames:
            self._frames.append(frame)
            self._chars += len(frame.json)
        if self._chars > MAX_WAITING_CHARS:
            self.fall_behind()
        self._changed.set()

    def fall_behind(self) -> None:
        self._frames.clear()
        self._chars = 0
        self.behind = True
        self._changed.set()

    async def wait(self, seconds: float) -> list[Frame]:
        """The frames that came, within this time; none where it passed, or where the viewer fell
        behind.
        """
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return []
        self._changed.clear()
        frames = list(self._frames)
        self._frames.clear()
        self._chars = 0
        return frames


class Reader:
    """The one reader of a web process, and its hub."""

    def __init__(self, config: Config) -> None:
        self.reads = 0
        self._lane = db.Lane("viewers", limit=10.0, prepares=True)
        self._poll = config.POLL_SECONDS
        self._deaf_poll = config.STREAM_POLL_SECONDS
        self._changed = threading.Condition()
        self._viewers: dict[UUID, set[Viewer]] = {}
        self._positions: dict[UUID, int] = {}
        self._woken: set[UUID] = set()
        self._closed = False
        self._polled = False
        """Whether what is read now was found by the poll while signals should have told."""
        self._hub = Hub({wake.RUN_EVENTS: self._hear}, alias=config.listen_alias)
        self._thread = threading.Thread(target=self._run, name="agentruns-viewers", daemon=True)

    def start(self) -> None:
        self._hub.start()
        self._thread.start()

    def close(self, *, timeout: float = 0.0) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._hub.close(timeout=timeout)
        self._thread.join(timeout)

    @property
    def hub(self) -> Hub:
        return self._hub

    @property
    def viewers(self) -> int:
        return sum(len(viewers) for viewers in self._viewers.values())

    def join(self, viewer: Viewer) -> None:
        """Hand the viewer what comes from now on; it reads what was before by itself."""
        with self._changed:
            self._viewers.setdefault(viewer.run_id, set()).add(viewer)
        metrics.viewers.inc()

    def leave(self, viewer: Viewer) -> None:
        metrics.viewers.dec()
        with self._changed:
            viewers = self._viewers.get(viewer.run_id, set())
            viewers.discard(viewer)
            if not viewers:
                self._viewers.pop(viewer.run_id, None)
                self._positions.pop(viewer.run_id, None)

    def caught_up(self, viewer: Viewer, page: Page) -> bool:
        """The viewer has everything up to the end of `page`: whether it may wait. If not, the
        reader is past that, and the viewer reads another page.
        """
        cursor = min(page.cursor, page.last_seq)
        with self._changed:
            if self._positions.setdefault(viewer.run_id, cursor) > cursor:
                return False
            # What came between the page and this moment was handed to nobody.
            self._wake([viewer.run_id])
            return True

    def enforce(self) -> None:
        self._lane.enforce()

    def _hear(self, payload: str | None) -> None:
        with self._changed:
            self._wake(self._positions if payload is None else wake.ids_in(payload))

    def _wake(self, run_ids: Iterable[UUID]) -> None:
        woken = [run_id for run_id in run_ids if run_id in self._positions]
        if woken:
            self._woken.update(woken)
            self._changed.notify()

    def _run(self) -> None:
        self._lane.open()
        backoff = db.Backoff(most=2.0)
        while (cursors := self._wait()) is not None:
            try:
                with self._lane.statement():
                    pages = read_pages(cursors, PAGE)
                self.reads += 1
                backoff.reset()
            except Exception as error:
                if not backoff.failures:
                    logger.warning("viewers: cannot read (%s), trying again", error)
                    if not isinstance(error, db.DATABASE_TROUBLE):
                        logger.exception("viewers: unexpected error")
                with self._changed:
                    self._wake(cursors)
                time.sleep(backoff.next())
                continue
            self._hand_out(cursors, pages)
        self._lane.close()

    def _wait(self) -> dict[UUID, int] | None:
        """Wait for a hint or the poll's turn: where to read on in which runs; None to end."""
        started = time.monotonic()
        self._polled = False
        with self._changed:
            while not self._woken:
                if self._closed:
                    return None
                poll = self._poll if self._hub.hearing else self._deaf_poll
                left = started + poll - time.monotonic()
                if left <= 0:
                    self._polled = self._hub.hearing
                    self._woken.update(self._positions)
                    started = time.monotonic()
                    if self._woken:
                        break
                    continue
                self._changed.wait(min(left, self._deaf_poll))
            if self._closed:
                return None
            chosen = [self._woken.pop() for _ in range(min(MAX_RUNS_PER_READ, len(self._woken)))]
            return {
                run_id: self._positions[run_id] for run_id in chosen if run_id in self._positions
            }

    def _hand_out(self, cursors: dict[UUID, int], pages: dict[UUID, Page]) -> None:
        parcels: dict[asyncio.AbstractEventLoop, list[tuple[Viewer, list[Frame] | None]]] = {}
        with self._changed:
            for run_id in cursors:
                page = pages.get(run_id)
                if page is None:  # the run was deleted: its viewers find out
                    frames = None
                elif page.frames:
                    frames = page.frames
                    if self._polled:
                        metrics.lost_signals.labels("events").inc()
                    self._positions[run_id] = page.cursor
                    if len(frames) >= PAGE:
                        self._wake([run_id])
                else:
                    continue
                for viewer in self._viewers.get(run_id, ()):
                    parcels.setdefault(viewer.loop, []).append((viewer, frames))
        for loop, parcel in parcels.items():
            if not loop.is_closed():
                loop.call_soon_threadsafe(_deliver, parcel)


def _deliver(parcel: list[tuple[Viewer, list[Frame] | None]]) -> None:
    for viewer, frames in parcel:
        if frames is None:
            viewer.fall_behind()
        else:
            viewer.deliver(frames)


_lock = threading.Lock()
_reader: tuple[int, Reader] | None = None


def get_reader() -> Reader:
    """This process's reader, started at first use (and again in a forked child)."""
    global _reader
    with _lock:
        if _reader is None or _reader[0] != os.getpid():
            _reader = os.getpid(), Reader(get_config())
            _reader[1].start()
        return _reader[1]


def close_reader(*, timeout: float = 0.0) -> None:
    """End the process's reader, and wait for that up to `timeout`; the next tail starts another."""
    global _reader
    with _lock:
        if _reader is not None and _reader[0] == os.getpid():
            _reader[1].close(timeout=timeout)
        _reader = None


Batch = list[Frame] | Literal["keepalive"]


async def follow(run_id: UUID, after: int) -> AsyncGenerator[Batch, None]:
    """`tail`, begun again from where it was should it ever break: nothing escapes but the end."""
    while True:
        try:
            async with contextlib.aclosing(tail(run_id, after)) as batches:
                async for batch in batches:
                    if batch != KEEPALIVE:
                        after = max(after, batch[-1].seq)
                    yield batch
        except Exception:
            logger.exception("the stream of run %s broke; it goes on", run_id)
            await asyncio.sleep(1)
        else:
            return


async def tail(
    run_id: UUID, after: int, *, keepalive: float | None = None
) -> AsyncGenerator[Batch, None]:
    """The run's events after the seq `after`, in batches, until `complete`; `KEEPALIVE` after each
    `keepalive` seconds of silence.

    Ends only with `complete`, or where the run has been deleted. While the database is away it
    keeps the stream open and tries again.
    """
    silence = get_config().KEEPALIVE_SECONDS if keepalive is None else keepalive
    reader, viewer = get_reader(), Viewer(run_id)
    backoff = db.Backoff(first=RETRY_SECONDS[0], most=RETRY_SECONDS[1])
    quiet_since = time.monotonic()
    reader.join(viewer)
    try:
        while True:
            if viewer.behind:
                viewer.behind = False
                try:
                    page = await db.in_thread(read_page, run_id, after, PAGE)
                except db.DATABASE_TROUBLE:
                    viewer.behind = True
                    await asyncio.sleep(backoff.next())
                    fresh = []
                else:
                    backoff.reset()
                    if page is None or (page.done and not page.frames):
                        return
                    fresh = page.frames
                    viewer.behind = len(fresh) >= PAGE or not reader.caught_up(viewer, page)
            else:
                frames = await viewer.wait(max(0.0, quiet_since + silence - time.monotonic()))
                fresh = _following(frames, after, viewer)
                reader.enforce()
            now = time.monotonic()
            if fresh:
                after, quiet_since = max(after, fresh[-1].seq), now
                yield fresh
                if fresh[-1].type == "complete":
                    return
            elif now - quiet_since >= silence:
                quiet_since = now
                yield KEEPALIVE
    finally:
        reader.leave(viewer)


def _following(frames: list[Frame], after: int, viewer: Viewer) -> list[Frame]:
    """The frames that follow on `after` without a gap; behind a gap the viewer has to catch up.

    A cursor beyond the journal's end still gets `complete`.
    """
    fresh: list[Frame] = []
    for frame in frames:
        if frame.seq > after + 1:
            viewer.fall_behind()
            break
        if frame.seq == after + 1 or frame.type == "complete":
            fresh.append(frame)
            after = max(after, frame.seq)
    return fresh
