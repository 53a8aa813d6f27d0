"""Follow a run from a cursor, as it goes on.

Rung 6: any process serves any run, from any cursor. A stream that was opened ends with the run, and
not before: while the database is away it stays open, with keepalives.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from itertools import accumulate
from typing import Literal
from uuid import UUID

from . import db
from .conf import get_config
from .events import Frame, Page, read_page
from .reader import PAGE, Reader, get_reader
from .viewer import MAX_WAITING_CHARS, Viewer

logger = logging.getLogger(__name__)

KEEPALIVE: Literal["keepalive"] = "keepalive"
Batch = list[Frame] | Literal["keepalive"]


async def tail(
    run_id: UUID, after: int, *, keepalive: float | None = None
) -> AsyncGenerator[Batch, None]:
    """The run's events after the seq `after`, in batches, until `complete`; `KEEPALIVE` after each
    `keepalive` seconds of silence.

    Ends only with `complete`, whatever the cursor, or where the run has been deleted. No exception
    leaves it.
    """
    silence = get_config().KEEPALIVE_SECONDS if keepalive is None else keepalive
    reader, viewer = get_reader(), Viewer(run_id, after)
    catch_up = _CatchUp(reader, viewer)
    reader.join(viewer)
    quiet_since = time.monotonic()
    try:
        while not catch_up.run_is_gone:
            if viewer.behind:
                fresh = await catch_up.read()
            else:
                fresh = await viewer.wait(max(0.0, quiet_since + silence - time.monotonic()))
                reader.enforce()
            if fresh:
                quiet_since = time.monotonic()
                yield fresh
                if fresh[-1].type == "complete":
                    return
            elif time.monotonic() - quiet_since >= silence:
                quiet_since = time.monotonic()
                yield KEEPALIVE
    finally:
        reader.leave(viewer)


class _CatchUp:
    """Read the table from the viewer's cursor up to where the reader takes over."""

    def __init__(self, reader: Reader, viewer: Viewer) -> None:
        self.run_is_gone = False
        self._reader = reader
        self._viewer = viewer
        self._limit = PAGE
        self._backoff = db.Backoff(first=0.2, most=2.0)

    async def read(self) -> list[Frame]:
        """The next events, or none; after a moment where they cannot be read."""
        viewer = self._viewer
        viewer.behind = False
        try:
            page = await db.in_thread(read_page, viewer.run_id, viewer.cursor, self._limit)
        except Exception as error:
            if not isinstance(error, db.DATABASE_TROUBLE):
                logger.exception("the stream of run %s broke; it goes on", viewer.run_id)
            viewer.behind = True
            await asyncio.sleep(self._backoff.next())
            return []
        self._backoff.reset()
        self.run_is_gone = page is None
        return self._accept(page) if page else []

    def _accept(self, page: Page) -> list[Frame]:
        viewer = self._viewer
        if page.done and not page.frames:
            # The run ended at a cursor that was given ahead of it: its end is still to be told.
            viewer.cursor, viewer.behind = page.last_seq - 1, True
            return []
        frames = _within_bounds(page.frames)
        is_cut = len(frames) < len(page.frames)
        is_full = is_cut or len(frames) >= self._limit
        self._limit = len(frames) if is_cut else min(PAGE, self._limit * 2)
        if frames:
            viewer.cursor = max(viewer.cursor, frames[-1].seq)
        viewer.behind = is_full or not self._reader.caught_up(viewer, page)
        return frames


def _within_bounds(frames: list[Frame]) -> list[Frame]:
    """As many as one viewer may hold, and at least one."""
    sizes = accumulate(len(frame.json) for frame in frames)
    fitting = sum(size <= MAX_WAITING_CHARS for size in sizes)
    return frames[: max(1, fitting)]
