"""Write events.

Rung 6: one appender per run. A run's events are numbered in the memory of the worker that holds its
claim, consecutive deltas of one stream are merged, and one statement appends the events of all runs
of the process, each behind its own fence. What was handed to a statement is sealed: it is sent
again as it was until it is known to be stored, and a row that is there already is recognised by its
number.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import Any
from uuid import UUID

from . import db, wake
from .fence import PROBED, Fence, fenced_sql
from .reply import Reply
from .text import array, encode, repair, split_half

FIRST_SEQ = 4
"""Seq of the first event after those of enqueue (1, 2) and of the claim (3)."""

DELTA_TYPES = frozenset({"content_delta", "reasoning_delta", "tool_call_delta"})
TOOL_TYPES = frozenset({"tool_call_started", "tool_call_arguments", "tool_call_finished"})
CONTRACT_TYPES = (
    DELTA_TYPES
    | TOOL_TYPES
    | {
        "user_message_created",
        "run_queued",
        "run_started",
        "run_resumed",
        "input_required",
        "input_received",
        "usage",
        "complete",
    }
)

# A row of one delta has no more than this, so that neither a frame nor the memory of a merge grows
# without bound.
MAX_DELTA_CHARS = 32_768
MAX_EVENT_CHARS = 16_000_000
"""Of one event's payload as JSON: one run's value must not be what no statement can carry."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the journal, its payload as JSON text."""

    run_id: UUID
    seq: int
    type: str
    payload: str


class Standing(Enum):
    """What a statement found out about a claim."""

    HELD = "held"
    LOCKED = "locked"
    """Still ours; somebody has the row locked at this moment."""
    SUPERSEDED = "superseded"


@dataclass(slots=True)
class _OpenDelta:
    type: str
    key: str
    """Field of the payload that names the stream: `stream` or `call_id`."""
    name: str
    pieces: list[str] = field(default_factory=list)
    chars: int = 0


class RunJournal:
    """The part of one run's journal that is not stored yet, and the reply so far. Safe to use from
    any thread.
    """

    def __init__(self, run_id: UUID, *, next_seq: int = FIRST_SEQ) -> None:
        self.run_id = run_id
        self.reply = Reply()
        self.waiting_chars = 0
        """Size of what is not stored yet, for back-pressure."""
        self.stored_to = next_seq - 1
        """Seq up to which everything is stored."""
        self._lock = threading.Lock()
        self._next_seq = next_seq
        self._open: _OpenDelta | None = None
        self._halves: dict[tuple[str, str], str] = {}
        self._rows: list[Row] = []
        self._started = False

    def add(self, type_: str, payload: Mapping[str, Any]) -> int:
        """Append an event of its own row; its seq. Raises `ValueError` where JSON cannot carry the
        payload.
        """
        encoded = encode(payload, f"event {type_!r}")
        if len(encoded) > MAX_EVENT_CHARS:
            raise ValueError(
                f"event {type_!r} has {len(encoded)} characters as JSON; at most {MAX_EVENT_CHARS} "
                "are stored: keep the value elsewhere and name the place"
            )
        with self._lock:
            self._close_delta()
            if type_ in TOOL_TYPES:
                self.reply.add(type_, json.loads(encoded))
            return self._append(type_, encoded)

    def delta(self, type_: str, key: str, name: str, text: str) -> bool:
        """Append text to the stream `name`; whether it is the first event of the run, which is not
        to wait.
        """
        with self._lock:
            if self._halves:
                text = self._halves.pop((type_, name), "") + text
            whole, half = split_half(text)
            if half:
                self._halves[type_, name] = half
            whole = repair(whole)
            first, self._started = not self._started, True
            for start in range(0, len(whole), MAX_DELTA_CHARS):
                self._merge(type_, key, name, whole[start : start + MAX_DELTA_CHARS])
            return first

    def seal(self) -> list[Row]:
        """Every row that is not known to be stored; none of these changes any more."""
        with self._lock:
            self._close_delta()
            return list(self._rows)

    def stored(self, rows: Sequence[Row]) -> None:
        """These rows, from a `seal`, are in the table."""
        with self._lock:
            del self._rows[: len(rows)]
            self.stored_to = rows[-1].seq
            self.waiting_chars -= sum(len(row.payload) for row in rows)

    def go_on(self, past: Reply) -> None:
        """Add to this reply; nothing has been said yet by this worker."""
        with self._lock:
            self.reply = past

    def withdraw(self, stored: Reply) -> None:
        """Forget what is not stored, since the server refuses its first row; `stored` is the reply
        as far as it is.
        """
        with self._lock:
            self.reply = stored
            self._open = None
            if self._rows:
                self._next_seq = self._rows[0].seq
            self._rows.clear()
            self._halves.clear()
            self.waiting_chars = 0

    def finish(self) -> None:
        """No more deltas come: halves of pairs that were kept back are written as what they are."""
        with self._lock:
            for (type_, name), half in self._halves.items():
                self._merge(
                    type_, "call_id" if type_ == "tool_call_delta" else "stream", name, repair(half)
                )
            self._halves.clear()

    @property
    def next_seq(self) -> int:
        """Seq of the next row, once everything pending is sealed."""
        return self._next_seq

    @property
    def has_pending(self) -> bool:
        return bool(self._rows) or self._open is not None

    def _merge(self, type_: str, key: str, name: str, text: str) -> None:
        current = self._open
        if (
            current is None
            or current.type != type_
            or current.name != name
            or current.chars + len(text) > MAX_DELTA_CHARS
        ):
            self._close_delta()
            current = self._open = _OpenDelta(type_, key, name)
        current.pieces.append(text)
        current.chars += len(text)
        self.waiting_chars += len(text)
        if type_ == "content_delta":
            self.reply.say(name, text)

    def _close_delta(self) -> None:
        current, self._open = self._open, None
        if current is not None:
            self.waiting_chars -= current.chars
            payload = {current.key: current.name, "delta": "".join(current.pieces)}
            self._append(current.type, encode(payload, current.type))

    def _append(self, type_: str, encoded: str) -> int:
        seq = self._next_seq
        self._next_seq += 1
        self._started = True
        self._rows.append(Row(self.run_id, seq, type_, encoded))
        self.waiting_chars += len(encoded)
        return seq


# The rows of `held.events`. They hang on their run's row instead of being joined to it: a plan that
# is kept knows nothing of how many there are, and might compare each with each.
EVENTS = "jsonb_to_recordset(held.events) AS event(seq int, type text, payload jsonb)"


def encoded(rows: Iterable[Row]) -> str:
    """The rows of one run as JSON, for `EVENTS`."""
    texts = (
        f'{{"seq":{row.seq},"type":{json.dumps(row.type)},"payload":{row.payload}}}' for row in rows
    )
    return f"[{','.join(texts)}]"


@cache
def _append_sql() -> str:
    fenced = fenced_sql("id")
    return f"""
    WITH asked AS (
        SELECT * FROM unnest(%s::uuid[], %s::uuid[], %s::jsonb[]) AS asked(run_id, token, events)
    ),
    tried AS MATERIALIZED (
        SELECT asked.*, claim.id
        FROM asked LEFT JOIN LATERAL ({fenced} FOR NO KEY UPDATE SKIP LOCKED) claim ON true
    ),
    held AS (SELECT * FROM tried WHERE id IS NOT NULL),
    appended AS (
        INSERT INTO agentruns_runevent (run_id, seq, type, payload, created_at)
        SELECT held.id, event.seq, event.type, event.payload, clock_timestamp()
        FROM held CROSS JOIN LATERAL {EVENTS}
        ON CONFLICT (run_id, seq) DO NOTHING
    ),
    hinted AS ({wake.HINTS})
    SELECT asked.run_id, asked.id IS NOT NULL, asked.id IS NOT NULL OR EXISTS ({fenced} {PROBED}),
        (SELECT count(*) FROM hinted)
    FROM tried asked
    """


def append(batches: Sequence[tuple[Fence, Sequence[Row]]]) -> dict[UUID, Standing]:
    """Store the rows of many runs in one statement, each run's behind its own fence; how each claim
    stands.

    Nothing is stored for a run that is not `HELD`. Rows that are stored already, by a statement
    whose answer was lost, are left as they are.
    """
    batches = sorted(batches, key=lambda batch: batch[0].run_id)  # one lock order for all
    params = [
        array(fence.run_id for fence, _ in batches),
        array(fence.token for fence, _ in batches),
        array(encoded(rows) for _, rows in batches),
    ]
    answer = db.script((_append_sql(), params))
    return {run_id: standing(held, fenced) for run_id, held, fenced, _ in answer}


def standing(held: bool, fenced: bool) -> Standing:
    """`held`: the statement had the row locked; `fenced`: the claim holds by its snapshot."""
    if held:
        return Standing.HELD
    return Standing.LOCKED if fenced else Standing.SUPERSEDED
