"""The only ways a run ends.

Rung 4: whoever ends a run (its worker, a reaper, a stop) writes status, `complete`, reply, the next
turn's promotion and the hints in one transaction. The first ending wins; every other finds the run
no longer running under its token and writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cache
from typing import Any
from uuid import UUID

from django.db.models import Max

from . import db, turns, wake
from .fence import PROBED, Fence, fenced_sql, suspended_sql
from .ids import uuid7
from .journal import EVENTS, Row, Standing, encoded, standing
from .models import AgentRun, RunEvent, RunStatus
from .reply import Reply
from .text import array, encode

MESSAGES = {
    "agent_error": "The agent failed.",
    "worker_lost": "The worker that ran this was lost; what it had said so far is kept.",
    "worker_shutdown": "The worker shut down before the run could finish.",
    "timeout": "The run took longer than it may.",
    "queue_timeout": "The run could not start in the time that it may wait.",
    "silent": "The run said nothing for longer than it may.",
    "token_limit": "The run used more tokens than it may.",
    "cost_limit": "The run cost more than it may.",
    "input_expired": "Nobody answered the run's question in time.",
}
"""The public sentence of each failure code: no exception's text, no traceback."""


def failure(code: str) -> dict[str, str]:
    """The public error of a failed run."""
    return {"code": code, "message": MESSAGES[code]}


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run is to end, and all that its worker has not stored yet."""

    fence: Fence
    conversation_id: UUID
    status: RunStatus
    seq: int
    """Of `complete`: one more than the last row."""
    rows: Sequence[Row] = ()
    """Rows that may not be stored yet."""
    content: str = ""
    """The reply's text so far."""
    parts: Sequence[dict[str, Any]] = ()
    """The reply's tool calls, in call order."""
    error: dict[str, str] | None = None
    traceback: str = ""
    retry_after: timedelta | None = None
    """Enqueue a linked retry that may start after this time; None: no retry."""
    retry_id: UUID = field(default_factory=uuid7)


@dataclass(frozen=True, slots=True)
class Ended:
    """What became of an ending: `HELD` means that this call ended the run, with this status."""

    standing: Standing
    status: RunStatus | None
    stopping_for: float | None = None
    """Seconds since a stop was asked for, where one was."""


def failure_so_far(
    fence: Fence, conversation_id: UUID, code: str, *, retry_after: timedelta | None = None
) -> Ending:
    """How a run fails that its worker does not end: with what its journal holds. The caller holds
    the run's row.
    """
    ending = ending_so_far(fence, conversation_id, RunStatus.FAILED, failure(code))
    return replace(ending, retry_after=retry_after)


def ending_so_far(
    fence: Fence, conversation_id: UUID, status: RunStatus, error: dict[str, str] | None = None
) -> Ending:
    """How a run ends with what its journal holds. The caller holds the run's row."""
    events = RunEvent.objects.filter(run_id=fence.run_id).order_by("seq")
    reply = Reply(events.values_list("type", "payload").iterator())
    return Ending(
        fence,
        conversation_id,
        status,
        seq=(events.aggregate(last=Max("seq"))["last"] or 0) + 1,
        content=reply.content,
        parts=reply.parts,
        error=error,
    )


# Behind SKIP LOCKED, the statement that follows must know which locks it has: asking again could
# lock a row later than its own snapshot.
_LOCK_CONVERSATIONS = """
SELECT set_config('agentruns.locked', COALESCE((SELECT string_agg(id::text, ',') FROM (
    SELECT id FROM agentruns_conversation WHERE id = ANY(%s::uuid[]) ORDER BY id FOR NO KEY UPDATE
        SKIP LOCKED) locked), ''), true)
"""


_ENDED = ("id", "conversation_id", "cancel_requested", "stop_requested_at", "reply_message_id")


@cache
def _end_sql(expired_for: timedelta | None, suspended: bool) -> str:
    fenced = suspended_sql(*_ENDED) if suspended else fenced_sql(*_ENDED, expired_for=expired_for)
    return f"""
    WITH asked AS (
        SELECT * FROM unnest(%s::uuid[], %s::uuid[], %s::text[], %s::jsonb[], %s::text[],
            %s::int[], %s::text[], %s::jsonb[], %s::uuid[], %s::interval[], %s::jsonb[])
        AS asked(run_id, token, status, error, traceback, seq, content, parts, retry_id,
            retry_after, events)
    ),
    tried AS MATERIALIZED (
        SELECT asked.run_id, asked.token, claim.id, claim.conversation_id, claim.reply_message_id,
            asked.error, asked.traceback, asked.seq, asked.content, asked.parts, asked.events,
            CASE WHEN claim.cancel_requested AND asked.status = 'completed' THEN 'cancelled' ELSE
                asked.status END AS status,
            asked.content <> '' OR asked.parts <> '[]' AS replied,
            extract(epoch FROM clock_timestamp() - claim.stop_requested_at)::float8 AS stopping_for,
            asked.retry_id, CASE WHEN NOT claim.cancel_requested THEN asked.retry_after END AS
                retry_after
        FROM asked LEFT JOIN LATERAL ({fenced} FOR NO KEY UPDATE SKIP LOCKED) claim
            ON claim.conversation_id = ANY((SELECT string_to_array(
                current_setting('agentruns.locked'), ',')::uuid[])::uuid[])
    ),
    held AS (SELECT * FROM tried WHERE id IS NOT NULL),
    written AS (
        INSERT INTO agentruns_runevent (run_id, seq, type, payload, created_at)
        SELECT held.id, event.seq, event.type, event.payload, clock_timestamp()
        FROM held CROSS JOIN LATERAL {EVENTS}
        ON CONFLICT (run_id, seq) DO NOTHING
    ),
    ended AS (
        UPDATE agentruns_agentrun run SET status = held.status, error = held.error, traceback =
            held.traceback, last_seq = held.seq,
            finished_at = clock_timestamp()
        FROM held WHERE run.id = held.id
        RETURNING run.*
    ),
    completed AS (
        INSERT INTO agentruns_runevent (run_id, seq, type, payload, created_at)
        SELECT id, seq, 'complete', jsonb_build_object('status', status, 'error', error,
            'message_id', CASE WHEN replied THEN reply_message_id END), clock_timestamp()
        FROM held
    ),
    reply AS (
        INSERT INTO agentruns_message (id, conversation_id, role, content, parts, status, position,
            created_at)
        SELECT reply_message_id, conversation_id, 'assistant', content, parts,
            CASE status WHEN 'completed' THEN 'complete' ELSE 'partial' END,
            (SELECT COALESCE(max(said.position), 0) + 1 FROM agentruns_message said WHERE
                said.conversation_id = held.conversation_id),
            clock_timestamp()
        FROM held WHERE replied
    ),
    retried AS (
        INSERT INTO agentruns_agentrun (id, conversation_id, user_id, user_message_id,
            reply_message_id, retry_of_id, agent, status, input,
            metadata, limits, turn, attempt, ready_at, worker_id, cancel_requested, traceback,
                request_hash, created_at, trace_context)
        SELECT held.retry_id, ended.conversation_id, ended.user_id, ended.user_message_id,
            gen_random_uuid(), ended.id, ended.agent, 'queued',
            ended.input, ended.metadata, ended.limits, ended.turn, ended.attempt + 1,
            clock_timestamp() + held.retry_after, '', false, '', '', clock_timestamp(),
            ended.trace_context
        FROM held JOIN ended ON ended.id = held.id WHERE held.retry_after IS NOT NULL
        RETURNING id, conversation_id, user_message_id
    ),
    retry_events AS (
        INSERT INTO agentruns_runevent (run_id, seq, type, payload, created_at)
        SELECT id, 1, 'user_message_created', jsonb_build_object('message_id', user_message_id),
            clock_timestamp() FROM retried
        UNION ALL SELECT id, 2, 'run_queued', jsonb_build_object('run_id', id), clock_timestamp()
            FROM retried
    ),
    promoted AS (
        UPDATE agentruns_agentrun SET ready_at = clock_timestamp()
        FROM (SELECT ({turns.HEAD}) AS id FROM held idle WHERE idle.retry_after IS NULL) head
        WHERE agentruns_agentrun.id = head.id AND agentruns_agentrun.ready_at IS NULL
        RETURNING agentruns_agentrun.id
    ),
    hinted AS ({wake.HINTS}),
    woken AS (
        SELECT pg_notify('{wake.RUN_READY}', string_agg(replace(id::text, '-', ''), ',')) FROM (
            SELECT id FROM promoted UNION ALL SELECT id FROM retried) ready HAVING count(*) > 0
    )
    SELECT asked.run_id, CASE WHEN asked.id IS NOT NULL THEN asked.status END,
        asked.id IS NOT NULL OR EXISTS ({fenced} {PROBED}), asked.stopping_for,
        (SELECT count(*) FROM hinted) + (SELECT count(*) FROM woken)
    FROM tried asked
    """


def end_runs(
    endings: Iterable[Ending], *, expired_for: timedelta | None = None, suspended: bool = False
) -> dict[UUID, Ended]:
    """End running runs, each behind its own fence, in one transaction; what became of each.

    `expired_for` is for reapers: the run must still be without renewal for this long past its
    lease, at the moment of the write. `suspended` is for runs that wait or have just been answered:
    no worker holds them, and the caller has locked them and their conversations. A completion that
    a stop overtook is a cancellation. A run whose row or conversation is locked by somebody else is
    `LOCKED`: try again soon.
    """
    endings = sorted(endings, key=lambda ending: ending.fence.run_id)
    params = [
        array(ending.fence.run_id for ending in endings),
        array(ending.fence.token for ending in endings),
        array(ending.status.value for ending in endings),
        array(encode(ending.error, "error") if ending.error else None for ending in endings),
        array(ending.traceback for ending in endings),
        array(ending.seq for ending in endings),
        array(ending.content for ending in endings),
        array(encode(list(ending.parts), "parts") for ending in endings),
        array(ending.retry_id for ending in endings),
        array(_seconds(ending.retry_after) for ending in endings),
        array(encoded(ending.rows) for ending in endings),
    ]
    conversations = array(ending.conversation_id for ending in endings)
    answer = db.script(
        (_LOCK_CONVERSATIONS, [conversations]), (_end_sql(expired_for, suspended), params)
    )
    return {
        run_id: Ended(
            standing(status is not None, fenced),
            RunStatus(status) if status else None,
            stopping_for,
        )
        for run_id, status, fenced, stopping_for, _ in answer
    }


def _seconds(span: timedelta | None) -> str | None:
    return None if span is None else f"{span.total_seconds():f} seconds"


# The message of a turn that a stop cancels goes back to its author; that of one that fails has been
# said, and stands in the transcript.
_HANDED_BACK = "status = 'draft'"
_SAID = """status = 'sent', position = (SELECT COALESCE(max(said.position), 0) + 1
    FROM agentruns_message said WHERE said.conversation_id = held.conversation_id)"""

_END_QUEUED = """
WITH held AS (
    UPDATE agentruns_agentrun run SET status = %s, error = %s::jsonb, finished_at =
        clock_timestamp(), last_seq = (SELECT COALESCE(max(event.seq), 0) + 1 FROM
            agentruns_runevent event WHERE event.run_id = run.id)
    WHERE id = ANY(%s::uuid[]) AND status = 'queued'
    RETURNING id, last_seq, user_message_id, conversation_id, status, error
),
completed AS (
    INSERT INTO agentruns_runevent (run_id, seq, type, payload, created_at)
    SELECT id, last_seq, 'complete', jsonb_build_object('status', status, 'error', error,
        'message_id', NULL), clock_timestamp() FROM held
),
moved AS (
    UPDATE agentruns_message SET {message} FROM held
    WHERE agentruns_message.id = held.user_message_id AND agentruns_message.status = 'queued'
    RETURNING agentruns_message.id
)
SELECT held.id, moved.id FROM held LEFT JOIN moved ON moved.id = held.user_message_id
"""


def cancel_queued(runs: Iterable[AgentRun]) -> list[UUID]:
    """End runs that never started, in the caller's transaction; the messages that became drafts.

    A waiting retry's message keeps its place in the transcript. The caller has locked the
    conversation and the runs.
    """
    ended = _end_queued(runs, RunStatus.CANCELLED, None, _HANDED_BACK)
    return [message_id for _, message_id in ended if message_id is not None]


def fail_queued(runs: Iterable[AgentRun], code: str) -> list[UUID]:
    """Fail runs that never started, at most one of a conversation, in the caller's transaction; the
    runs that this call ended. The caller has locked the conversations and the runs.
    """
    return [run_id for run_id, _ in _end_queued(runs, RunStatus.FAILED, failure(code), _SAID)]


def _end_queued(
    runs: Iterable[AgentRun], status: RunStatus, error: dict[str, str] | None, message: str
) -> list[tuple[UUID, UUID | None]]:
    ids = [run.pk for run in runs]
    if not ids:
        return []
    params = [status.value, error and encode(error, "error"), ids]
    rows = db.script((_END_QUEUED.format(message=message), params))
    wake.notify(wake.RUN_EVENTS, [run_id for run_id, _ in rows])
    return [(run_id, message_id) for run_id, message_id in rows]
