"""Beat for the runs of a worker.

Rung 3. The lease that counts for this worker is kept by its own monotonic clock, from before the
last beat that succeeded: if it cannot renew, it knows so without asking anybody.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Collection, Iterable
from datetime import timedelta
from uuid import UUID

from . import db, metrics
from .execution import Cause, Execution
from .journal import Standing
from .lease import heartbeat
from .presence import Presence

logger = logging.getLogger(__name__)

LOCKED_RETRY_SECONDS = 0.5
LOCKED_HINT_SECONDS = 0.05
"""How soon a run is looked at again that a hint named while its row was locked."""


class Heart:
    """Renews the leases of all executions, in a thread with a connection of its own."""

    def __init__(
        self,
        executions: Callable[[], Collection[Execution]],
        *,
        on_superseded: Callable[[Execution], None],
        presence: Presence,
        every: float,
        lease: timedelta,
        limit: float,
    ) -> None:
        self.lane = db.Lane("heartbeat", limit=limit)
        self.beats = 0
        self.last_beat_began = 0.0
        """When the last beat was sent that said of every run how it stands."""
        self.seen = 0.0
        """When the database last took this worker's sign of life."""
        self._executions = executions
        self._on_superseded = on_superseded
        self._presence = presence
        self._every = every
        self._lease = lease
        self._asked = threading.Condition()
        self._soon: set[UUID] = set()
        self._all_soon = False
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="agentruns-heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        with self._asked:
            self._closing = True
            self._asked.notify()

    def beat_now(self, run_ids: Iterable[UUID] | None = None) -> None:
        """Beat for these runs, or for all, without waiting for the next turn."""
        with self._asked:
            if run_ids is None:
                self._all_soon = True
            else:
                self._soon.update(run_ids)
            self._asked.notify()

    def _run(self) -> None:
        self.lane.open()
        backoff = db.Backoff(first=0.1, most=2.0)
        due = time.monotonic() + self._every
        self._be_seen(self._presence.show)
        while (named := self._wait(due)) is not None:
            try:
                with self.lane.statement():
                    locked = self._beat(named)
                if backoff.failures:
                    logger.info("heartbeat: beating again")
                backoff.reset()
                if named:
                    if locked:  # most likely by this worker's own journal, for a moment
                        due = min(due, time.monotonic() + LOCKED_HINT_SECONDS)
                    continue
                self._be_seen(self._presence.show)
                pause = LOCKED_RETRY_SECONDS if locked else self._every * random.uniform(0.9, 1.0)
            except Exception as error:
                metrics.beats_failed.inc()
                if backoff.is_news(error):
                    logger.warning(
                        "heartbeat: could not renew the leases (%s), trying again",
                        db.brief(error),
                    )
                pause = backoff.next() if backoff.failures else min(0.01, backoff.next())
            due = time.monotonic() + pause
        self._be_seen(self._presence.leave)
        self.lane.close()

    def join(self, timeout: float) -> None:
        """Wait for the thread to end, after `close`."""
        self._thread.join(timeout)

    def _be_seen(self, sign: Callable[[], None]) -> None:
        """For people and probes only: a failure costs nothing but being seen."""
        try:
            with self.lane.statement():
                sign()
            self.seen = time.monotonic()
        except Exception as error:
            logger.debug("heartbeat: could not be seen (%s)", error)

    def _wait(self, due: float) -> set[UUID] | None:
        """Wait until a beat is due; for which runs (none named: all), or None to end."""
        with self._asked:
            while True:
                if self._closing:
                    return None
                named, self._soon = self._soon, set()
                if self._all_soon or time.monotonic() >= due:
                    self._all_soon = False
                    return set()
                if named:
                    return named
                self._asked.wait(max(0.0, due - time.monotonic()))

    def _beat(self, named: set[UUID]) -> bool:
        """One beat; whether a row was locked by somebody else."""
        executions = {
            execution.fence.run_id: execution
            for execution in self._executions()
            if not execution.ended and (not named or execution.fence.run_id in named)
        }
        began = time.monotonic()
        beats = (
            heartbeat([execution.fence for execution in executions.values()], lease=self._lease)
            if executions
            else {}
        )
        locked = False
        for run_id, beat in beats.items():
            execution = executions[run_id]
            match beat.standing:
                case Standing.HELD:
                    execution.lease_until = began + self._lease.total_seconds()
                    if beat.cancel_requested:
                        execution.interrupt(Cause.STOP)
                case Standing.LOCKED:
                    locked = True
                case Standing.SUPERSEDED:
                    self._stand_down(execution)
        if not named and not locked:
            self.beats += 1
            self.last_beat_began = began
        return locked

    def _stand_down(self, execution: Execution) -> None:
        # An ending under way looks the same from here; its writer knows which it is.
        if not execution.ended and not execution.ending_composed:
            logger.warning(
                "%s ended elsewhere, or its claim was superseded: standing down", execution
            )
            self._on_superseded(execution)
