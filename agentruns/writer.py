"""The one journal writer of a worker process.

Rung 6: a flush is one statement for all runs that have something to store, an ending is one
statement for all runs that end. Deltas wait for the clock, which slows down with the load; a run's
first delta and structural events go at once, and those that arrive while a statement is under way
share the next.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from django.db import DataError, Error

from . import db, metrics
from .execution import Cause, Execution, Outcome, describe
from .finalize import Ended, Ending, end_runs
from .journal import Row, Standing, append
from .questions import Pause, Paused, past_of, pause
from .reply import Reply

logger = logging.getLogger(__name__)

ROWS_PER_SECOND = 7000
"""The rate of delta rows above which the interval stretches from the floor towards
`FLUSH_SECONDS`.
"""
LOCKED_RETRY_SECONDS = 0.05
MAX_ENDINGS = 200
GATHER_SECONDS = 0.0003, 0.01
"""How long an ending waits for others, at least and at most: a sixteenth as long as the last
statement took. One for many costs little more than one for one, and many come in while one is under
way.
"""
CLAIM_SECONDS = 0.0002
"""What the claimer gets to ask for runs in the slots that came free, before the endings are counted
and logged: that would hold the interpreter's lock that it waits for.
"""
MAX_BATCH_CHARS = 8_000_000
"""What one statement carries at the most."""
# Classes of SQLSTATE that a value can cause: data exceptions, and limits of the program (a JSON
# nested too deeply for the server).
_VALUE_STATES = ("22", "54")
# Classes that speak of the server's or the schema's state, which is the same for all runs.
_SHARED_STATES = ("08", "25", "28", "3D", "40", "42", "53", "55", "57", "58")


class Writer:
    """Stores the events and the endings of all runs of the process, in a thread with a connection
    of its own.
    """

    def __init__(
        self,
        *,
        floor: float,
        ceiling: float,
        limit: float,
        on_ended: Callable[[Sequence[Execution]], None],
    ) -> None:
        self.lane = db.Lane("journal", limit=limit, prepares=True)
        self.floor = floor
        self.ceiling = ceiling
        self.flushes = 0
        self._on_ended = on_ended
        self._changed = threading.Condition()
        self._dirty: set[Execution] = set()
        self._urgent: set[Execution] = set()
        self._ending: dict[Execution, float] = {}
        """Runs to end, and the time before which the next try makes no sense."""
        self._next_flush = 0.0
        self._gather = GATHER_SECONDS[0]
        self._wakes_at = math.inf
        """The moment that the thread waits for, while it waits."""
        self._paused_until = 0.0
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="agentruns-journal", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def touch(self, execution: Execution, *, urgent: bool = False) -> None:
        """The execution has something to store; `urgent` does not wait for the clock."""
        if not urgent and execution in self._dirty:
            return
        with self._changed:
            if urgent:
                self._urgent.add(execution)
                self._changed.notify()
            else:
                if not self._dirty:
                    self._changed.notify()
                self._dirty.add(execution)

    def end(self, execution: Execution) -> None:
        """End the run as its cause or outcome says, when what it said is stored with it."""
        with self._changed:
            self._dirty.discard(execution)
            self._urgent.discard(execution)
            due = time.monotonic() + self._gather
            self._ending.setdefault(execution, due)
            if due < self._wakes_at:
                self._changed.notify()

    def close(self, *, timeout: float) -> bool:
        """Store what is pending and end the thread; whether that was done within `timeout`
        seconds.
        """
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        self.lane.open()
        backoff = db.Backoff(first=0.05, most=2.0)
        while self._wait():
            flushing, ending = self._take()
            began = time.monotonic()
            try:
                with self.lane.statement():
                    self._flush(flushing)
                    self._end(ending)
                if backoff.failures:
                    logger.info("journal: stored again")
                backoff.reset()
            except Exception as error:
                if backoff.is_news(error):
                    logger.warning(
                        "journal: could not store (%s); kept in memory, trying again",
                        db.brief(error),
                    )
                    if not isinstance(error, db.DATABASE_TROUBLE):
                        logger.exception("journal: unexpected error")
                self._put_back(flushing, ending, backoff.next())
            self._gather = gathering(time.monotonic() - began)
        self.lane.close()

    def _wait(self) -> bool:
        """Wait until something is due; False when closing and nothing is left."""
        with self._changed:
            while True:
                now = time.monotonic()
                if self._closing and not (self._urgent or self._dirty or self._ending):
                    return False
                moment = max(self._due(now), self._paused_until)
                if moment <= now:
                    return True
                self._wakes_at = moment
                self._changed.wait(None if moment == math.inf else moment - now)

    def _due(self, now: float) -> float:
        """The moment at which there is something to store."""
        if self._urgent or (self._dirty and self._closing):
            return now
        moments = [*self._ending.values(), *([self._next_flush] if self._dirty else [])]
        return min(moments, default=math.inf)

    def _take(self) -> tuple[list[Execution], list[Execution]]:
        with self._changed:
            now = time.monotonic()
            flushing = set(self._urgent)
            self._urgent.clear()
            if self._next_flush <= now or self._closing:
                flushing |= self._dirty
                self._dirty.clear()
                self._next_flush = now + self._interval(len(flushing))
            else:
                self._dirty -= flushing
            soon = now + self._gather
            ending = [execution for execution, due in self._ending.items() if due <= soon][
                :MAX_ENDINGS
            ]
            for execution in ending:
                del self._ending[execution]
            return list(flushing), ending

    def _interval(self, rows: int) -> float:
        return min(self.ceiling, max(self.floor, rows / ROWS_PER_SECOND))

    def _put_back(
        self, flushing: Iterable[Execution], ending: Iterable[Execution], pause: float
    ) -> None:
        """After a failure nothing is known of the statement: everything is tried again, as it
        was.
        """
        with self._changed:
            self._paused_until = time.monotonic() + pause
            for execution in ending:
                if not execution.ended:
                    self._ending.setdefault(execution, 0.0)
            self._dirty.update(
                execution
                for execution in flushing
                if not execution.ended and execution not in self._ending
            )

    def _flush(self, executions: Sequence[Execution]) -> None:
        batch: list[tuple[Execution, list[Row]]] = []
        size = 0
        for execution in executions:
            if execution.ended or not (rows := execution.journal.seal()):
                continue
            batch.append((execution, rows))
            size += sum(len(row.payload) for row in rows)
            if size > MAX_BATCH_CHARS:
                self._append(batch)
                batch, size = [], 0
        if batch:
            self._append(batch)

    def _append(self, batch: Sequence[tuple[Execution, list[Row]]]) -> None:
        try:
            with metrics.flush(sum(len(rows) for _, rows in batch)):
                found = append([(execution.fence, rows) for execution, rows in batch])
        except (Error, *_CLIENT_ERRORS) as error:
            if not _may_be_one_runs(error):
                raise
            self._isolate(batch, error)
            return
        self.flushes += 1
        for execution, rows in batch:
            match found[execution.fence.run_id]:
                case Standing.HELD:
                    execution.journal.stored(rows)
                    metrics.stored(execution, rows)
                    execution.release_waiters(rows[-1].seq)
                case Standing.LOCKED:
                    self.touch(execution)
                case Standing.SUPERSEDED:
                    self._stand_down(execution)

    def _isolate(self, batch: Sequence[tuple[Execution, list[Row]]], error: Exception) -> None:
        """One run's rows are refused: the others must not suffer, and a value that the server
        cannot store fails its run.
        """
        if len(batch) > 1:
            half = len(batch) // 2
            self._each(self._append, [batch[:half], batch[half:]])
            return
        [(execution, rows)] = batch
        if len(rows) > 1:
            for row in rows:
                if execution.ended or execution.outcome.traceback is not None:
                    break
                self._append([(execution, [row])])
            return
        if not _is_about_a_value(error):
            raise error
        logger.error("%s emitted a value that PostgreSQL refuses: %s", execution, db.brief(error))
        execution.ending_composed = True  # from here on its code adds nothing
        execution.journal.withdraw(_stored_reply(execution))
        execution.fail(describe(error))
        self.end(execution)

    def _each(self, verb: Callable[[Any], None], batches: Iterable[Any]) -> None:
        """Call the verb for every batch, then raise what the last refused one raised."""
        refused: Exception | None = None
        for batch in batches:
            try:
                verb(batch)
            except (Error, *_CLIENT_ERRORS) as error:
                if not _may_be_one_runs(error):
                    raise
                refused = error
        if refused is not None:
            raise refused

    def _pause(self, executions: Sequence[Execution]) -> None:
        """Have the runs wait for the answers that they ask for."""
        pauses = {execution: execution.compose_pause() for execution in executions}
        if not pauses:
            return
        try:
            found = pause(pauses.values())
        except (Error, *_CLIENT_ERRORS) as error:
            if not _may_be_one_runs(error):
                raise
            self._pause_apart(pauses, error)
            return
        again = time.monotonic() + LOCKED_RETRY_SECONDS * random.uniform(0.5, 1.5)
        for execution in pauses:
            match found[execution.fence.run_id]:
                case Paused(stopping=True):
                    execution.ask_no_more(Cause.STOP)
                    self._end([execution])
                case Paused(Standing.HELD):
                    metrics.asked(execution, pauses[execution].rows)
                    logger.info("%s waits for an answer", execution)
                    self._ended([execution])
                case Paused(Standing.LOCKED):
                    with self._changed:
                        self._ending[execution] = again
                case _:
                    self._stand_down(execution)

    def _pause_apart(self, pauses: dict[Execution, Pause], error: Exception) -> None:
        if len(pauses) > 1:
            self._each(self._pause, [[execution] for execution in pauses])
            return
        if not _is_about_a_value(error):
            raise error
        [execution] = pauses
        logger.error("%s asked what PostgreSQL refuses: %s", execution, db.brief(error))
        execution.fail(describe(error))
        self._end([execution])

    def _end(self, executions: Sequence[Execution]) -> None:
        self._pause(
            [execution for execution in executions if execution.asking and not execution.ended]
        )
        endings = {
            execution: _composed(execution)
            for execution in executions
            if not execution.ended and not execution.asking
        }
        if not endings:
            return
        try:
            found = end_runs(endings.values())
        except (Error, *_CLIENT_ERRORS) as error:
            if not _may_be_one_runs(error):
                raise
            self._end_apart(endings, error)
            return
        again = time.monotonic() + LOCKED_RETRY_SECONDS * random.uniform(0.5, 1.5)
        held = []
        for execution in endings:
            match found[execution.fence.run_id].standing:
                case Standing.HELD:
                    held.append(execution)
                case Standing.LOCKED:
                    with self._changed:
                        self._ending[execution] = again
                case Standing.SUPERSEDED:
                    self._stand_down(execution)
        if held:
            self._ended(held)
            time.sleep(CLAIM_SECONDS)
            _note(held, endings, found)

    def _end_apart(self, endings: dict[Execution, Ending], error: Exception) -> None:
        if len(endings) > 1:
            self._each(self._end, [[execution] for execution in endings])
            return
        [(execution, ending)] = endings.items()
        if not _is_about_a_value(error) or execution.bare:
            raise error
        if ending.rows:
            self._isolate([(execution, list(ending.rows))], error)
        else:
            logger.error("%s said what PostgreSQL refuses: %s", execution, db.brief(error))
            execution.bare = True
            execution.outcome = Outcome(describe(error))
        self._end([execution])

    def _stand_down(self, execution: Execution) -> None:
        # Also the way in which an own ending looks whose answer was lost.
        if not execution.ending_composed:
            logger.warning("%s is no longer this worker's: standing down", execution)
        self._ended([execution])

    def _ended(self, executions: Sequence[Execution]) -> None:
        for execution in executions:
            execution.supersede()
        self._on_ended(executions)


_CLIENT_ERRORS = (ValueError, TypeError, OverflowError)
"""What psycopg raises, beside its own errors, for a value that it cannot send."""


def _may_be_one_runs(error: Exception) -> bool:
    """Whether the statement may be well without one of its runs."""
    state = _state(error)
    return _is_about_a_value(error) or (bool(state) and state[:2] not in _SHARED_STATES)


def _is_about_a_value(error: Exception) -> bool:
    """Whether a value cannot be stored, now or ever."""
    state = _state(error)
    return state[:2] in _VALUE_STATES if state else isinstance(error, (DataError, *_CLIENT_ERRORS))


def _state(error: Exception) -> str:
    return getattr(error.__cause__, "sqlstate", None) or ""


def _stored_reply(execution: Execution) -> Reply:
    return past_of(execution.fence.run_id).reply


def _composed(execution: Execution) -> Ending:
    if not execution.has_past:  # told to end before its code began
        execution.remember(past_of(execution.fence.run_id))
    return execution.compose_ending()


def _note(
    held: Sequence[Execution],
    endings: Mapping[Execution, Ending],
    found: Mapping[UUID, Ended],
) -> None:
    """Count and log those that ended."""
    now = time.monotonic()
    words = []
    for execution in held:
        ending, ended = endings[execution], found[execution.fence.run_id]
        metrics.stored(execution, ending.rows)
        metrics.ended(execution, ending, ended)
        took = f"{now - execution.started:.1f} s"
        words.append(f"{execution} ended {ended.status}{_code(ending)} after {took}")
    # One line for all: under load, a line for each would cost more than its ending.
    logger.info("%s", "; ".join(words))


def gathering(took: float) -> float:
    """How long to wait for more, where the last statement took so long."""
    return min(GATHER_SECONDS[1], max(GATHER_SECONDS[0], took / 16))


def _code(ending: Ending) -> str:
    return f" ({ending.error['code']})" if ending.error else ""
