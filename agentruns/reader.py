"""Read new events for everyone in the process who watches.

Rung 6: the viewers of a process share one reader. It reads the new rows of all runs that were
hinted at in one statement and hands them out in memory; a viewer that only waits costs neither a
connection nor a thread nor a query.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Iterable
from uuid import UUID

from . import db, metrics, wake
from .conf import Config, get_config
from .events import Page, read_pages
from .hub import Hub
from .viewer import Viewer

logger = logging.getLogger(__name__)

PAGE = 500
"""Events of one run in one read."""
MAX_RUNS_PER_READ = 500


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
        self._polled_at = time.monotonic()
        self._polled = False
        """Whether what is read now was found by the poll while signals should have told."""
        self._closed = False
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
        with self._changed:
            return sum(len(viewers) for viewers in self._viewers.values())

    def join(self, viewer: Viewer) -> None:
        """Hand the viewer what comes from now on; it reads what was before by itself."""
        with self._changed:
            self._viewers.setdefault(viewer.run_id, set()).add(viewer)
        metrics.viewers.inc()

    def leave(self, viewer: Viewer) -> None:
        with self._changed:
            viewers = self._viewers.get(viewer.run_id, set())
            if viewer not in viewers:
                return
            viewers.remove(viewer)
            metrics.viewers.dec()
            if not viewers:
                self._viewers.pop(viewer.run_id, None)
                self._positions.pop(viewer.run_id, None)

    def caught_up(self, viewer: Viewer, page: Page) -> bool:
        """The viewer has everything up to the end of `page`: whether it may wait. If not, the
        reader is past that, and the viewer reads another page.
        """
        cursor = min(page.cursor, page.last_seq)
        with self._changed:
            if viewer.run_id not in self._positions:
                self._positions[viewer.run_id] = cursor
                # What came between the page and this moment was handed to nobody.
                self._wake([viewer.run_id])
            return self._positions[viewer.run_id] <= cursor

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
            except Exception as error:
                self._complain(error, again=backoff.failures > 0)
                with self._changed:
                    self._wake(cursors)
                time.sleep(backoff.next())
            else:
                self.reads += 1
                backoff.reset()
                self._hand_out({run_id: pages.get(run_id) for run_id in cursors})
        self._lane.close()

    def _complain(self, error: Exception, *, again: bool) -> None:
        if not isinstance(error, db.DATABASE_TROUBLE):
            logger.error("viewers: cannot read, trying again", exc_info=error)
        elif not again:
            logger.warning("viewers: cannot read (%s), trying again", error)

    def _wait(self) -> dict[UUID, int] | None:
        """Wait for a hint or the poll's turn: where to read on in which runs; None to end."""
        with self._changed:
            self._polled = False
            while not self._closed:
                # Measured from the last poll: hints at some runs must not put off the others'.
                left = self._polled_at + self._poll_interval - time.monotonic()
                if left <= 0:
                    self._polled_at = time.monotonic()
                    self._polled = self._hub.hearing and not self._woken
                    self._woken.update(self._positions)
                elif not self._woken:
                    self._changed.wait(min(left, self._deaf_poll))
                if self._woken:
                    return self._take()
            return None

    @property
    def _poll_interval(self) -> float:
        return self._poll if self._hub.hearing else self._deaf_poll

    def _take(self) -> dict[UUID, int]:
        chosen = [self._woken.pop() for _ in range(min(MAX_RUNS_PER_READ, len(self._woken)))]
        return {run_id: self._positions[run_id] for run_id in chosen if run_id in self._positions}

    def _hand_out(self, pages: dict[UUID, Page | None]) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, list[Parcel]] = {}
        with self._changed:
            for run_id, page in pages.items():
                # Runs that nobody watches any more have no position.
                if run_id in self._positions and self._is_news(run_id, page):
                    for viewer in self._viewers.get(run_id, ()):
                        by_loop.setdefault(viewer.loop, []).append((viewer, page))
        for loop, parcels in by_loop.items():
            try:
                loop.call_soon_threadsafe(_deliver, parcels)
            except RuntimeError:  # the loop was closed, its viewers still in it
                for viewer, _ in parcels:
                    self.leave(viewer)

    def _is_news(self, run_id: UUID, page: Page | None) -> bool:
        if page is None:
            return True
        if not page.frames:
            return False
        if self._polled:
            metrics.lost_signals.labels("events").inc()
        self._positions[run_id] = page.cursor
        if len(page.frames) >= PAGE:
            self._wake([run_id])
        return True


Parcel = tuple[Viewer, Page | None]
"""A viewer and what is new to it; None where the run is gone, which it finds out by itself."""


def _deliver(parcels: list[Parcel]) -> None:
    for viewer, page in parcels:
        if page is None:
            viewer.fall_behind()
        else:
            viewer.deliver(page.frames)


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
