"""One run's code in this process, from its claim until both the run has ended and the code has
returned.

The two are different facts. A run whose code ignores its cancellation is fenced off: it ends, and
the code can write nothing more, but its slot stays taken until it returns.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Any

from .agents import Agent
from .claim import Claimed
from .exceptions import RunStopped
from .finalize import Ending, failure
from .journal import RunJournal
from .models import RunStatus
from .questions import Past, Pause, Question
from .reaper import retry_after
from .text import bounded, is_number, repair

MAX_WAITING_CHARS = 1_000_000
"""What one run may have waiting to be stored before its code has to wait."""
MAX_TRACEBACK_CHARS = 50_000


class Cause(Enum):
    """Why code was told to end; the first cause is the true one."""

    STOP = "a stop was asked for"
    ASKED = "the run asks a person"
    TIMEOUT = "the run took longer than it may"
    SILENT = "the run said nothing for longer than it may"
    TOKENS = "the run used more tokens than it may"
    COST = "the run cost more than it may"
    LEASE_LOST = "the lease could not be renewed"
    SHUTDOWN = "the worker shuts down"
    FAILED = "an event could not be stored"
    SUPERSEDED = "the run is no longer this worker's"


_FAILURE_CODES = {
    Cause.TIMEOUT: "timeout",
    Cause.SILENT: "silent",
    Cause.TOKENS: "token_limit",
    Cause.COST: "cost_limit",
    Cause.LEASE_LOST: "worker_lost",
    Cause.SHUTDOWN: "worker_shutdown",
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the code came back: without an error, or with this traceback."""

    traceback: str | None = None
    kind: type[BaseException] | None = None
    """Class of what it raised."""

    @classmethod
    def of(cls, error: BaseException | None) -> Outcome:
        return cls() if error is None else cls(describe(error), type(error))


def _number(counts: Mapping[str, Any], name: str) -> float:
    count = counts.get(name)
    return count if is_number(count) else 0


def describe(error: BaseException) -> str:
    """The exception's traceback as storable text of bounded length; never raises, whatever the
    exception's own methods do.
    """
    try:
        text = "".join(traceback.format_exception(error))
    except BaseException as failed:
        text = f"{type(error).__name__} (formatting it raised {type(failed).__name__})"
    return repair(bounded(text, MAX_TRACEBACK_CHARS))


class Execution:
    """A held run: its claim, its journal, its code. Used from every thread of the worker."""

    def __init__(self, claimed: Claimed, agent: Agent, *, lease_until: float) -> None:
        self.claimed = claimed
        self.fence = claimed.fence
        self.agent = agent
        self.journal = RunJournal(claimed.run_id, next_seq=claimed.next_seq)
        self.lease_until = lease_until
        """By this process's monotonic clock, counted from before the last beat that succeeded."""
        self.started = time.monotonic()
        self.heard = self.started
        """When the code last said something, or waited for what it said to be stored."""
        self.limits = agent.limits.lowered(claimed.limits)
        self.tokens = 0.0
        self.cost = 0.0
        self.has_past = claimed.answered_seq is None
        """Whether what it had said before it was answered is known here."""
        self.replays_to: str | None = None
        """Key of the question up to which the code repeats what is journaled."""
        self._journaled: Counter[tuple[str, str]] = Counter()
        """Events of tool calls, by type and call, that are journaled and may be said again."""
        self._known_calls: set[str] = set()
        self.asking: Question | None = None
        """What it asks a person, where that is why its code was told to end."""
        self.cause: Cause | None = None
        self.interrupted: float | None = None
        self.returned = False
        self.ended = False
        self.ending_composed = False
        self.ignored = False
        """Whether the code was named for ignoring its cancellation."""
        self.bare = False
        """Whether the server refuses what the run has said: it ends without."""
        self.outcome = Outcome()
        self.cancel: Callable[[], None] = lambda: None
        """Delivers a cancellation to the code; set by whoever runs it."""
        self.waiters: list[tuple[int, Callable[[bool], None]]] = []
        """(seq, callback): called with True when the journal is stored up to seq, with False when
        it never will be.
        """
        self._lock = threading.Lock()

    def __str__(self) -> str:
        return f"run {self.claimed.run_id} (agent {self.agent.name!r})"

    @property
    def cancel_requested(self) -> bool:
        return self.cause is Cause.STOP

    def interrupt(self, cause: Cause) -> bool:
        """Tell the code to end; whether this is the first cause."""
        with self._lock:
            if self.cause is not None or self.returned or self.ended:
                return False
            self.cause = cause
            self.interrupted = time.monotonic()
        self.cancel()
        return True

    def ask(self, question: Question) -> bool:
        """Have the run wait for an answer when its code has returned; False where the code was told
        to end before. The caller ends the code.
        """
        with self._lock:
            if self.cause is not None or self.returned or self.ended or self.ending_composed:
                return False
            self.asking = question
            self.cause = Cause.ASKED
            self.interrupted = time.monotonic()
            return True

    def ask_no_more(self, cause: Cause) -> None:
        """The run does not wait for an answer, and ends as by this cause."""
        with self._lock:
            self.asking = None
            self.cause = cause

    def remember(self, past: Past) -> None:
        """Go on from what the run had said before it was answered."""
        with self._lock:
            if self.has_past:
                return
            self.has_past = True
            self.journal.go_on(past.reply)
            self.replays_to = past.answered
            self._journaled = past.calls.copy()
            self._known_calls = {call_id for _, call_id in past.calls}
        for counts in past.counts:
            self.consume(counts)

    def repeats_call(self, type_: str, call_id: str) -> bool:
        """Whether code that was called again says what is journaled of a tool call; each event is
        left out as often as it is there.
        """
        with self._lock:
            repeated = self._journaled[type_, call_id] > 0
            if repeated:
                self._journaled[type_, call_id] -= 1
            return repeated

    def knows_call(self, call_id: str) -> bool:
        """Whether the tool call is journaled."""
        with self._lock:
            return call_id in self._known_calls

    def will_repeat(self, type_: str, call_id: str) -> bool:
        """Whether that event of a tool call is journaled, and was not said again yet."""
        with self._lock:
            return self._journaled[type_, call_id] > 0

    def consume(self, counts: Mapping[str, Any]) -> None:
        """Count what was used, and end the run where it is more than its limits. As for a sweep,
        what is no number counts nothing.
        """
        self.tokens += _number(counts, "input_tokens") + _number(counts, "output_tokens")
        self.cost += _number(counts, "cost")
        limits = self.limits
        if limits.tokens is not None and self.tokens > limits.tokens:
            self.interrupt(Cause.TOKENS)
        elif limits.cost is not None and self.cost > limits.cost:
            self.interrupt(Cause.COST)

    def silence(self, now: float, *, since: float) -> float:
        """Seconds without an event at `now`, not counted from before `since`."""
        if self.waiters:
            self.heard = now
        return now - max(self.heard, since)

    def fail(self, traceback: str) -> None:
        """The run fails with this traceback, whatever its code does next."""
        self.outcome = Outcome(traceback)
        if self.asking:
            self.ask_no_more(Cause.FAILED)
        else:
            self.interrupt(Cause.FAILED)

    def come_back(self, outcome: Outcome) -> None:
        """The code has returned."""
        with self._lock:
            self.returned = True
            if self.outcome.traceback is None:
                self.outcome = outcome

    def supersede(self) -> None:
        """The run has ended, or is somebody else's: nothing more is written, the code is to
        stop.
        """
        with self._lock:
            self.ended = True
            first = self.cause is None
            if first:
                self.cause = Cause.SUPERSEDED
                self.interrupted = time.monotonic()
        self.release_waiters()
        if first and not self.returned:
            self.cancel()

    def check(self) -> None:
        """Raise `RunStopped` where the code was told to end."""
        if self.cause is not None:
            raise RunStopped(self.cause.value)
        if self.ended or self.ending_composed:
            raise RunStopped("the run has ended")

    def compose_ending(self) -> Ending:
        """How the run ends, by the first cause or else by its outcome. From here on its code can
        write nothing.
        """
        self.ending_composed = True
        self.journal.finish()
        rows = self.journal.seal()
        status, error = self._verdict()
        return Ending(
            self.fence,
            self.claimed.conversation_id,
            status,
            seq=self.journal.next_seq,
            rows=rows,
            content="" if self.bare else self.journal.reply.content,
            parts=() if self.bare else self.journal.reply.parts,
            error=error,
            traceback=(self.outcome.traceback or "") if error else "",
            retry_after=self._retry_after(error["code"]) if error else None,
        )

    def compose_pause(self) -> Pause:
        """How the run waits. From here on its code can write nothing."""
        assert self.asking is not None
        self.ending_composed = True
        self.journal.finish()
        rows = self.journal.seal()
        return Pause(self.fence, self.asking, seq=self.journal.next_seq, rows=rows)

    def _retry_after(self, code: str) -> timedelta | None:
        named = self.agent.retry.on if self.agent.retry else ()
        kind = self.outcome.kind
        raised = code == "agent_error" and kind is not None and issubclass(kind, named)
        if code != "worker_lost" and not raised:
            return None
        return retry_after(self.agent.name, self.claimed.attempt)

    def _verdict(self) -> tuple[RunStatus, dict[str, str] | None]:
        if self.cause is Cause.STOP:
            return RunStatus.CANCELLED, None
        code = _FAILURE_CODES.get(self.cause) if self.cause else None
        if code is None and self.outcome.traceback is not None:
            code = "agent_error"
        return (RunStatus.FAILED, failure(code)) if code else (RunStatus.COMPLETED, None)

    def release_waiters(self, stored_to: int | None = None) -> None:
        """Call back those who wait for rows up to `stored_to`; None: nobody's rows come any
        more.
        """
        with self._lock:
            if stored_to is None:
                due, self.waiters = self.waiters, []
            else:
                due = [waiter for waiter in self.waiters if waiter[0] <= stored_to]
                self.waiters = [waiter for waiter in self.waiters if waiter[0] > stored_to]
        for _, callback in due:
            callback(stored_to is not None)

    def when_stored(self, seq: int, callback: Callable[[bool], None]) -> None:
        """Have `callback` called, from any thread, when the journal is stored up to `seq`."""
        with self._lock:
            stored = self.journal.stored_to >= seq
            if not stored and not self.ended:
                self.waiters.append((seq, callback))
                return
        callback(stored)
