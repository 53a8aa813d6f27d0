"""Claim for a worker: a slot first, then a run.

Rung 2 and 5. The loop parks on its slots, on the hint that a run is ready, and on the moment at
which the next delayed one is; the poll finds what a lost hint did not tell.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from uuid import UUID

from django.db import Error, IntegrityError, OperationalError

from . import db, metrics, wake
from .claim import Claimed, Mark, adopt, claim, new_tokens

logger = logging.getLogger(__name__)

MAX_CLAIM = 100
"""Runs taken in one statement."""
EMPTY_WAKES_BEFORE_WAIT = 3
"""Hints that found nothing (others were quicker) before the next one is answered with a pause."""
MAX_PAUSE_SECONDS = 0.05
MAX_GATHER_SECONDS = 0.01
"""How long a slot that comes free waits for others at the most, where more runs stand ready than
there were slots: a sixteenth as long as the last claim took.
"""
MAX_WOKEN = 100
"""Runs named by hints that the next claim looks up; where more were named, it looks at all."""
MAX_STOPPING_PAUSE_SECONDS = 0.5
MIN_DELAY_SECONDS = 0.001
"""How soon a claim follows one that found a delayed run not ready yet, at the least."""
START_SECONDS = 0.0002
"""What the agents' loop gets to begin what was claimed before the claim is logged: the log line
would hold the interpreter's lock that the loop waits for.
"""
CONFLICTS_BEFORE_WAIT = 4

# Its client has given it up: it is to do nothing more.
_END_BACKEND = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE pid = %s AND pid <> pg_backend_pid() AND application_name = %s
    AND datname = current_database()
"""


class Claimer:
    """Takes as many runs as there are free slots, in a thread with a connection of its own."""

    def __init__(
        self,
        agents: Sequence[str],
        worker_id: str,
        *,
        free_slots: Callable[[], int],
        on_claimed: Callable[[Sequence[Claimed], float], None],
        lease: timedelta,
        poll: float,
        limit: float,
    ) -> None:
        self.lane = db.Lane("claim", limit=limit, prepares=True)
        self.claims = 0
        self._agents = agents
        self._worker_id = worker_id
        self._free_slots = free_slots
        self._on_claimed = on_claimed
        self._lease = lease
        self._poll = poll
        self._changed = threading.Condition()
        self._woken = True
        self._polled = False
        self._mark = Mark()
        self._due_at = math.inf
        """When the next delayed run may start, by the monotonic clock."""
        self._named: list[UUID] | None = None
        """The runs that hints named since the last claim; None: it looks at everything."""
        self._look_at_all_at = 0.0
        self._stopping = False
        self._unanswered: list[UUID] = []
        """Tokens of a claim whose answer was lost: it may have taken runs."""
        self._unanswered_since = 0.0
        self._backend: tuple[object, int | None] = (None, None)
        """The connection of the last claim, and the server process that it led to."""
        self._empty_wakes = 0
        self._taken_full = 0
        """How many runs the last claim took, where it took as many as it asked for."""
        self._took = 0.0
        """How long the last claim took, in seconds."""
        self._thread = threading.Thread(target=self._run, name="agentruns-claim", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self, payload: str | None = None) -> None:
        """A run may be ready: one that the hint names, or any where hints were lost."""
        with self._changed:
            self._woken = True
            if payload is None:
                self._named = None
            elif self._named is not None:
                self._named += wake.ids_in(payload)
                if len(self._named) > MAX_WOKEN:
                    self._named = None
            self._changed.notify()

    def slot_freed(self) -> None:
        with self._changed:
            self._changed.notify()

    def stop(self) -> None:
        """Claim nothing more. A claim under way is still answered, or adopted."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    @property
    def is_done(self) -> bool:
        """Whether nothing can be claimed any more."""
        return not self._thread.is_alive()

    def _run(self) -> None:
        self.lane.open()
        backoff = db.Backoff()
        while self._wait():
            try:
                with self.lane.statement():
                    self._claim()
                if backoff.failures:
                    logger.info("claim: claiming again")
                backoff.reset()
            except Exception as error:
                pause = backoff.next()
                conflict = isinstance(error, IntegrityError)
                if conflict and backoff.failures < CONFLICTS_BEFORE_WAIT:
                    pause = 0.0  # somebody was quicker: claim again at once
                elif backoff.is_news(error):
                    logger.warning("claim: cannot claim (%s), trying again", db.brief(error))
                    if not isinstance(error, db.DATABASE_TROUBLE):
                        logger.exception("claim: unexpected error")
                self._pause(pause)
                self.wake()
        self.lane.close()

    def _wait(self) -> bool:
        """Wait for a free slot, then for a hint or the poll's turn; False to end."""
        poll_at = time.monotonic() + self._poll * random.uniform(0.75, 1.0)
        with self._changed:
            while True:
                if self._unanswered:
                    return True
                if self._stopping:
                    return False
                if self._free_slots() > 0:
                    now = time.monotonic()
                    self._woken |= now >= self._due_at
                    if self._woken or now >= poll_at:
                        break
                    self._changed.wait(max(0.0, min(poll_at, self._due_at) - now))
                else:
                    self._changed.wait(self._poll)
            self._polled, self._woken = not self._woken, False
        if 0 < self._free_slots() < self._taken_full:
            time.sleep(min(MAX_GATHER_SECONDS, self._took / 16))
        if self._empty_wakes > EMPTY_WAKES_BEFORE_WAIT:
            # Many workers hear one hint: those that keep coming too late step back a little.
            self._pause(random.uniform(0, MAX_PAUSE_SECONDS))
        return True

    def _pause(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        with self._changed:
            while (left := deadline - time.monotonic()) > 0:
                if self._stopping:
                    # A lost answer is asked for as long as the drain lasts, but not in a hot loop.
                    left = min(left, MAX_STOPPING_PAUSE_SECONDS) if self._unanswered else 0.0
                    self._changed.wait(left)
                    return
                self._changed.wait(left)

    def _claim(self) -> None:
        if self._unanswered:
            self._adopt()
        free = 0 if self._stopping else min(self._free_slots(), MAX_CLAIM)
        if free <= 0:
            return
        self._note_backend()
        named = self._next_named()
        asked = min(free, len(named) or free)
        self._unanswered = new_tokens(asked)
        self._unanswered_since = time.monotonic()
        try:
            taken = claim(
                self._agents, self._unanswered, self._worker_id, lease=self._lease, mark=self._mark
            )
        except Error as error:
            if db.was_answered(error):
                self._unanswered = []
            raise
        answered = time.monotonic()
        self._took = answered - self._unanswered_since
        if len(taken) < asked:  # else it does not say when the next one is due
            due_in = self._mark.due_in
            self._due_at = math.inf if due_in is None else answered + max(MIN_DELAY_SECONDS, due_in)
        self._unanswered = []
        self.claims += 1
        if self._polled and taken:
            metrics.lost_signals.labels("ready").inc()
        self._empty_wakes = 0 if taken else self._empty_wakes + 1
        there_may_be_more = len(taken) == asked and {c.run_id for c in taken} != named
        self._taken_full = asked if there_may_be_more else 0
        if there_may_be_more:
            self._woken = True
        self._start(taken)

    def _next_named(self) -> set[UUID]:
        """The runs that hints named, which is then all that the next claim looks for; none named:
        it looks for as many as there are free slots.
        """
        with self._changed:
            named, self._named = self._named, []
        now = time.monotonic()
        if named is None or self._polled or now >= self._look_at_all_at:
            self._look_at_all_at = now + self._poll
            self._mark.forget()
            return set()
        self._mark.woken = named
        return set(named)

    def _note_backend(self) -> None:
        wrapper = db.connection()
        wrapper.ensure_connection()
        if self._backend[0] is not wrapper.connection:
            pid = None
            if not self.lane.pooled:
                [(pid,)] = db.script(("SELECT pg_backend_pid()", ()))
            self._backend = wrapper.connection, pid

    def _adopt(self) -> None:
        self._see_the_claim_over()
        taken = adopt(self._unanswered)
        if taken:
            logger.warning("claim: adopted %d runs of a claim whose answer was lost", len(taken))
        self._unanswered = []
        self._start(taken)

    def _see_the_claim_over(self) -> None:
        """Raise `OperationalError` while the lost claim may still commit: looked for too early, its
        runs would be nobody's.
        """
        pid = self._backend[1]
        if pid is not None:
            over = not db.script((_END_BACKEND, [pid, self.lane.application_name]))
        else:
            over = time.monotonic() > self._unanswered_since + 2 * self.lane.limit
        if not over:
            raise OperationalError("a claim whose answer was lost may still be under way")

    def _start(self, taken: Sequence[Claimed]) -> None:
        if not taken:
            return
        self._on_claimed(taken, self._unanswered_since + self._lease.total_seconds())
        if not self._taken_full or self._free_slots() <= 0:
            time.sleep(START_SECONDS)
        for claimed in taken if metrics.enabled else ():
            metrics.claimed(claimed)
        if logger.isEnabledFor(logging.INFO):
            # One line for all: under load, a line for each would cost more than its claim.
            words = (
                f"claimed run {c.run_id} (agent {c.agent!r}, attempt {c.attempt})" for c in taken
            )
            logger.info("%s", "; ".join(words))
