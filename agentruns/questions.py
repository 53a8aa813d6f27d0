"""Ask a person.

Rung 4: the worker that holds a run writes the question, behind its fence, in the statement that
gives run, lease and slot up; the run waits without a worker until it is answered. The question is
kept with its answer: code that is called again from its start finds both by the question's key, in
whichever attempt at the same message.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from typing import Any
from uuid import UUID

from . import db, wake
from .conf import get_config
from .exceptions import QuestionChanged
from .fence import PROBED, Fence, fenced_sql
from .journal import EVENTS, TOOL_TYPES, Row, Standing, encoded, standing
from .models import RunEvent
from .reply import Reply
from .text import check_name, encode, size_of

MAX_EXPIRY = timedelta(days=366)


@dataclass(frozen=True, slots=True)
class Question:
    """A checked question: its key, itself as JSON text, and how long it may stay unanswered."""

    key: str
    text: str
    expires_in: timedelta


@dataclass(frozen=True, slots=True)
class Answer:
    """What a person answered."""

    value: Any


def checked(question: Any, key: str, expires_in: timedelta | None) -> Question:
    """The question as it is stored. Raises `ValueError` for what cannot be asked."""
    check_name(key, "a question's key")
    config = get_config()
    text = encode(question, f"question {key!r}")
    if (size := size_of(text)) > config.MAX_CONTENT_CHARS:
        raise ValueError(
            f"question {key!r} has {size} characters as JSON; at most "
            f"MAX_CONTENT_CHARS ({config.MAX_CONTENT_CHARS}) are taken"
        )
    if expires_in is None:
        expires_in = timedelta(seconds=config.ANSWER_TIMEOUT_SECONDS)
    if not timedelta(0) < expires_in <= MAX_EXPIRY:
        raise ValueError(
            f"question {key!r} expires in {expires_in}; it must be above 0 and at most "
            f"{MAX_EXPIRY.days} days"
        )
    return Question(key, text, expires_in)


_FIND = """
SELECT answer, question = %s::jsonb FROM agentruns_question
WHERE user_message_id = %s AND key = %s AND answered_at IS NOT NULL
"""


def find(user_message_id: UUID, question: Question) -> Answer | None:
    """The recorded answer; None where there is none yet.

    Raises `QuestionChanged` where another question was answered under this key.
    """
    rows = db.script((_FIND, [question.text, user_message_id, question.key]))
    if not rows:
        return None
    [(answer, same)] = rows
    if not same:
        raise QuestionChanged(
            f"Question {question.key!r} of message {user_message_id} was answered when it had "
            "another text. Called again, an agent must ask the same questions: record what they "
            "are made of with run.once(), or tell them apart by key=."
        )
    return Answer(json.loads(answer or "null"))


@dataclass(frozen=True, slots=True)
class Pause:
    """How a run is to wait, and all that its worker has not stored yet."""

    fence: Fence
    question: Question
    seq: int
    """Of `input_required`: one more than the last row."""
    rows: Sequence[Row] = ()
    """Rows that may not be stored yet."""


@dataclass(frozen=True, slots=True)
class Paused:
    """What became of a pause: `HELD` means that this call did it."""

    standing: Standing
    stopping: bool = False
    """A stop was asked for: the run does not wait, its worker is to end it."""


# As the wire writes a time.
_MOMENT = """to_char(held.expires_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')"""


@cache
def _pause_sql() -> str:
    fenced = fenced_sql("id", "user_message_id", "cancel_requested")
    return f"""
    WITH asked AS (
        SELECT * FROM unnest(%s::uuid[], %s::uuid[], %s::text[], %s::jsonb[], %s::interval[],
            %s::int[], %s::jsonb[])
        AS asked(run_id, token, key, question, expires_in, seq, events)
    ),
    tried AS MATERIALIZED (
        SELECT asked.*, claim.*, clock_timestamp() + asked.expires_in AS expires_at
        FROM asked LEFT JOIN LATERAL ({fenced} FOR NO KEY UPDATE SKIP LOCKED) claim ON true
    ),
    held AS (SELECT * FROM tried WHERE id IS NOT NULL AND NOT cancel_requested),
    written AS (
        INSERT INTO agentruns_runevent (run_id, seq, type, payload, created_at)
        SELECT held.id, event.seq, event.type, event.payload, clock_timestamp()
        FROM held CROSS JOIN LATERAL {EVENTS}
        ON CONFLICT (run_id, seq) DO NOTHING
    ),
    required AS (
        INSERT INTO agentruns_runevent (run_id, seq, type, payload, created_at)
        SELECT id, seq, 'input_required', jsonb_build_object('key', key, 'question', question,
            'expires_at', {_MOMENT}), clock_timestamp() FROM held
    ),
    recorded AS (
        INSERT INTO agentruns_question AS earlier (user_message_id, key, run_id, question,
            asked_at, expires_at)
        SELECT user_message_id, key, id, question, clock_timestamp(), expires_at FROM held
        ON CONFLICT (user_message_id, key) DO UPDATE SET run_id = EXCLUDED.run_id,
            question = EXCLUDED.question, asked_at = EXCLUDED.asked_at,
            expires_at = EXCLUDED.expires_at
        WHERE earlier.answered_at IS NULL
    ),
    paused AS (
        UPDATE agentruns_agentrun run SET status = 'waiting', claim_token = NULL,
            claim_expires_at = NULL
        FROM held WHERE run.id = held.id
    ),
    hinted AS ({wake.HINTS})
    SELECT asked.run_id, asked.id IS NOT NULL, asked.id IS NOT NULL OR EXISTS ({fenced} {PROBED}),
        COALESCE(asked.cancel_requested, false), (SELECT count(*) FROM hinted)
    FROM tried asked
    """


def pause(pauses: Iterable[Pause]) -> dict[UUID, Paused]:
    """Have running runs wait for an answer, each behind its own fence, in one statement; what
    became of each.

    Nothing is written for a run that was asked to stop, nor for one that is not `HELD`.
    """
    pauses = sorted(pauses, key=lambda pause: pause.fence.run_id)
    params = [
        [pause.fence.run_id for pause in pauses],
        [pause.fence.token for pause in pauses],
        [pause.question.key for pause in pauses],
        [pause.question.text for pause in pauses],
        [pause.question.expires_in for pause in pauses],
        [pause.seq for pause in pauses],
        [encoded(pause.rows) for pause in pauses],
    ]
    answer = db.script((_pause_sql(), params))
    return {
        run_id: Paused(standing(held, fenced), stopping)
        for run_id, held, fenced, stopping, _ in answer
    }


@dataclass(frozen=True, slots=True)
class Past:
    """What a run that was answered had said and used before."""

    reply: Reply
    counts: list[dict[str, float]]
    """What `run.usage` reported."""
    answered: str | None
    """Key of the newest answered question."""
    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How often each event of each tool call is journaled, by its type and the call's id."""


def past_of(run_id: UUID) -> Past:
    """The run's past, from its journal."""
    events = RunEvent.objects.filter(run_id=run_id).order_by("seq")
    reply, counts, answered = Reply(), [], None
    calls: Counter[tuple[str, str]] = Counter()
    for type_, payload in events.values_list("type", "payload"):
        match type_:
            case "usage":
                counts.append(payload)
            case "input_received":
                answered = payload["key"]
            case _:
                reply.add(type_, payload)
                if type_ in TOOL_TYPES:
                    calls[type_, payload["call_id"]] += 1
    return Past(reply, counts, answered, calls)
