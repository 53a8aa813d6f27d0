"""Sweep for a worker: the reaper's loop.

Rung 3. Once at the start, then every `REAP_SECONDS`, in a thread with a connection of its own.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Collection
from uuid import UUID

from . import db
from .conf import Config
from .reaper import Reaper

logger = logging.getLogger(__name__)


class Sweeper:
    """The reaper's loop: once at the start, then every `REAP_SECONDS`, in a thread with a
    connection of its own.
    """

    def __init__(
        self,
        config: Config,
        *,
        held: Callable[[], Collection[UUID]],
        enforced: Callable[[], Collection[UUID]],
        limit: float,
    ) -> None:
        self.lane = db.Lane("reaper", limit=limit)
        self._held = held
        self._enforced = enforced
        self.reaper = Reaper.of(config)
        self._every = config.REAP_SECONDS
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self.loop, name="agentruns-reaper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closed.set()

    def loop(self) -> None:
        """Sweep until closed."""
        self.lane.open()
        backoff = db.Backoff(first=0.5, most=self._every)
        while not self._closed.is_set():
            try:
                with self.lane.statement():
                    # Whoever holds a run ends it himself, or asks first if he stood still.
                    self.reaper.sweep(spared=self._held(), enforced=self._enforced())
                if backoff.failures:
                    logger.info("reaper: sweeping again")
                backoff.reset()
                pause = self._every * random.uniform(0.8, 1.0)
            except Exception as error:
                if backoff.is_news(error):
                    logger.warning("reaper: could not sweep (%s), trying again", db.brief(error))
                pause = backoff.next()
            self._closed.wait(pause)
        self.lane.close()
