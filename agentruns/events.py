"""Read a run's journal as it goes on the wire.

Rung 6: one statement reads where a run stands and its next events, so that both are of one
moment. A run that has ended and whose journal lacks `complete`, or was trimmed, gets that event
from its row.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

from . import db
from .models import TERMINAL, RunStatus
from .text import array

MAX_SEQ = 2**31 - 1
"""The largest number that a `seq` column holds; a cursor beyond it is beyond every end."""
MAX_CURSOR_DIGITS = 18
JSON_LIMIT = 1000
"""The most events in one answer of the JSON form, and how many it has where no limit is given."""

_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")


class Frame(NamedTuple):
    """One event: its number, its type, and its JSON text, which is ASCII without line breaks."""

    seq: int
    type: str
    json: str


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a run's journal, and where the run stood when it was read."""

    run_id: UUID
    status: RunStatus
    last_seq: int
    """The end of a run that has ended (seq of `complete`), else where the journal stands."""
    error: dict[str, str] | None
    trimmed: bool
    """The run has ended and its journal was removed."""
    after: int
    """The cursor that was asked for."""
    frames: list[Frame]
    """The events after the cursor, `complete` among them where the run has ended and the limit
    allows.
    """

    @property
    def has_ended(self) -> bool:
        return self.status in TERMINAL

    @property
    def cursor(self) -> int:
        """Where the next page begins."""
        return self.frames[-1].seq if self.frames else self.after

    @property
    def done(self) -> bool:
        """Nothing follows this page, ever."""
        return self.has_ended and self.cursor >= self.last_seq


# `message_id` of a `complete` made from the row: the reply, where there is one.
_PAGES = """
SELECT asked.run_id, asked.after, run.status, run.error::text, run.last_seq, run.trimmed_at IS NOT
    NULL, CASE WHEN run.finished_at IS NOT NULL THEN (SELECT reply.id FROM agentruns_message reply
        WHERE reply.id = run.reply_message_id) END,
    COALESCE(last.seq, 0), last.type = 'complete', event.seq, event.type, event.payload
FROM unnest(%s::uuid[], %s::int[]) AS asked(run_id, after)
JOIN agentruns_agentrun run ON run.id = asked.run_id
LEFT JOIN LATERAL (
    SELECT stored.seq, stored.type FROM agentruns_runevent stored WHERE stored.run_id = run.id
    ORDER BY stored.seq DESC LIMIT 1
) last ON true
LEFT JOIN LATERAL (
    SELECT next.seq, next.type, next.payload::text AS payload FROM agentruns_runevent next
    WHERE next.run_id = run.id AND next.seq > asked.after ORDER BY next.seq LIMIT %s
) event ON true
ORDER BY asked.run_id, event.seq
"""


def read_page(run_id: UUID, after: int, limit: int) -> Page | None:
    """Up to `limit` events after the seq `after`; None where there is no such run."""
    return read_pages({run_id: after}, limit).get(run_id)


def read_pages(cursors: Mapping[UUID, int], limit: int) -> dict[UUID, Page]:
    """A page of each of many runs, in one statement; a run that does not exist has none.

    `cursors` maps runs to the seq that each page begins after; `limit` bounds each page.
    """
    afters = array(min(after, MAX_SEQ) for after in cursors.values())
    rows = db.script((_PAGES, [array(cursors), afters, limit]))
    grouped: dict[UUID, list[tuple[Any, ...]]] = {}
    for row in rows:
        grouped.setdefault(row[0], []).append(row)
    return {run_id: _page(group, limit) for run_id, group in grouped.items()}


def terminal_frame(
    seq: int,
    status: str,
    error: Mapping[str, str] | None,
    message_id: UUID | None,
    *,
    trimmed: bool = False,
) -> Frame:
    """`complete`, made from the row of a run that has ended."""
    event: dict[str, Any] = {
        "type": "complete",
        "seq": seq,
        "status": status,
        "error": error,
        "message_id": message_id and str(message_id),
    }
    if trimmed:
        event["trimmed"] = True
    return Frame(seq, "complete", json.dumps(event))


def on_the_wire(seq: int, type_: str, payload: str) -> str:
    """The event as JSON text, its payload spliced in as the database wrote it.

    Only strings hold anything that is not ASCII, so escaping needs no parsing. Escaped, nothing in
    it looks like a line break to any client (U+0085 and U+2028 do to some).
    """
    if not payload.startswith("{"):  # only a write past the verbs makes one
        payload = f'{{"payload": {payload}}}'
    head = f'{{"type": {json.dumps(type_)}, "seq": {seq}'
    body = head + ("}" if payload == "{}" else f", {payload[1:]}")
    return body if body.isascii() else _NOT_ASCII.sub(_escaped, body)


def _escaped(found: re.Match[str]) -> str:
    return json.dumps(found.group())[1:-1]


def _page(rows: list[tuple[Any, ...]], limit: int) -> Page:
    run_id, after, status, error, last_seq, was_trimmed, message_id, stored_to, whole = rows[0][:9]
    frames = [
        Frame(seq, type_, on_the_wire(seq, type_, payload))
        for *_, seq, type_, payload in rows
        if seq is not None
    ]
    ended = status in TERMINAL
    trimmed = ended and (was_trimmed or not stored_to)
    end = stored_to
    if ended and not whole:
        end = last_seq or stored_to + 1
    page = Page(
        run_id=run_id,
        status=RunStatus(status),
        last_seq=end,
        error=json.loads(error) if error else None,
        trimmed=trimmed,
        after=after,
        frames=frames,
    )
    if ended and not page.done and len(frames) < limit:
        frames.append(terminal_frame(end, status, page.error, message_id, trimmed=trimmed))
    return page


def parse_cursor(text: str) -> int | None:
    """The whole number ≥ 0 that the text writes in plain digits; None where it writes none."""
    if not text.isascii() or not text.isdecimal():
        return None
    # A longer one is beyond every end; int() itself refuses thousands of digits.
    return int(text) if len(text) <= MAX_CURSOR_DIGITS else MAX_SEQ


def as_json(page: Page) -> str:
    """The page as the `application/json` form of the events route."""
    head = json.dumps({"run_id": str(page.run_id), "status": page.status.value})
    tail = json.dumps({"cursor": page.cursor, "last_seq": page.last_seq, "done": page.done})
    events = ", ".join(frame.json for frame in page.frames)
    return f'{head[:-1]}, "events": [{events}], {tail[1:]}'
