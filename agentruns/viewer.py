"""What one open stream has, and what waits for it.

Rung 6: a viewer is handed new events in memory, and catches up from the table by itself where it
joined late or reads too slowly. `seq` has no gaps, so one who missed something knows it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from uuid import UUID

from .events import Frame

MAX_WAITING_CHARS = 262_144
"""What one viewer may have waiting in memory before it has to catch up from the table."""


class Viewer:
    """One open stream, in the event loop that it was made in.

    `cursor` is the seq of the last event that it has.
    """

    def __init__(self, run_id: UUID, cursor: int) -> None:
        self.run_id = run_id
        self.cursor = cursor
        self.loop = asyncio.get_running_loop()
        self.behind = True
        """Events were left out, or may have been: the table has them."""
        self._frames: list[Frame] = []
        self._chars = 0
        self._changed = asyncio.Event()

    def deliver(self, frames: Iterable[Frame]) -> None:
        """Take events that are new to the process, in order."""
        for frame in frames:
            self._frames.append(frame)
            self._chars += len(frame.json)
        if self._chars > MAX_WAITING_CHARS:
            self.fall_behind()
        self._changed.set()

    def fall_behind(self) -> None:
        self._take()
        self.behind = True
        self._changed.set()

    async def wait(self, seconds: float) -> list[Frame]:
        """The events that came within this time and follow on those before; none where the viewer
        fell behind.
        """
        # A timer of the loop costs a fifth of a context that cancels.
        timer = self.loop.call_later(seconds, self._changed.set)
        try:
            await self._changed.wait()
        finally:
            timer.cancel()
        self._changed.clear()
        return self._following(self._take())

    def _take(self) -> list[Frame]:
        frames, self._frames, self._chars = self._frames, [], 0
        return frames

    def _following(self, frames: list[Frame]) -> list[Frame]:
        """What follows on the cursor without a gap; behind a gap the viewer has to catch up."""
        fresh: list[Frame] = []
        for frame in frames:
            if frame.seq > self.cursor + 1:
                self.fall_behind()
                break
            # A cursor beyond the journal's end still gets its end.
            if frame.seq == self.cursor + 1 or frame.type == "complete":
                fresh.append(frame)
                self.cursor = max(self.cursor, frame.seq)
        return fresh
