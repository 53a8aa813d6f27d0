"""Record a run.

Rung 1: the message, the run, its first two events and the wake are one statement in the caller's
transaction: together, or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, NamedTuple
from uuid import UUID

from . import db, plans, tracing, turns, wake
from .agents import Limits, resolve
from .conf import get_config
from .exceptions import (
    IdempotencyMismatch,
    InvalidContent,
    InvalidIdempotencyKey,
    NotADraft,
    QueueFull,
)
from .ids import uuid7s
from .models import AgentRun, Conversation, Message
from .text import check_exact, encode, fingerprint, unstorable

MAX_KEY_CHARS = 255


@dataclass(frozen=True, slots=True)
class Request:
    """A checked request for a run."""

    user: Any
    content: str
    agent: str
    conversation_id: UUID | None
    draft_id: UUID | None
    metadata: Mapping[str, Any]
    idempotency_key: str | None
    limits: Mapping[str, float]
    """Those that the request names."""
    queue_seconds: float | None
    """How long it may stand ready: the lower of its agent's limit and its own."""
    new_ids: list[UUID] = field(default_factory=lambda: uuid7s(4))
    """Of the run, its reply, its message and its conversation; the last two where they are new."""

    @property
    def run_id(self) -> UUID:
        return self.new_ids[0]

    @property
    def reply_message_id(self) -> UUID:
        return self.new_ids[1]

    @property
    def message_id(self) -> UUID:
        return self.draft_id or self.new_ids[2]

    @property
    def place_id(self) -> UUID:
        """Of the conversation, be it new or known."""
        return self.conversation_id or self.new_ids[3]

    @property
    def snapshot(self) -> dict[str, Any]:
        limits = {"limits": dict(self.limits)} if self.limits else {}
        asked = {"content": self.content, "agent": self.agent, "metadata": dict(self.metadata)}
        return asked | limits

    @property
    def kept_limits(self) -> dict[str, float] | None:
        """What the run's row holds, for claims and sweeps to go by."""
        queue = {} if self.queue_seconds is None else {"queue_seconds": self.queue_seconds}
        return {**self.limits, **queue} or None

    @property
    def fingerprint(self) -> str:
        places = {"conversation_id": self.conversation_id, "draft_id": self.draft_id}
        return fingerprint(
            self.snapshot | {name: value and str(value) for name, value in places.items()}
        )


def enqueue_run(
    *,
    conversation: Conversation | UUID | None,
    content: str,
    user: Any = None,
    agent: str | None = None,
    idempotency_key: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    draft: Message | UUID | None = None,
    limits: Limits | Mapping[str, Any] | None = None,
) -> AgentRun:
    """Record one turn, in the caller's transaction; the queued run.

    `conversation=None` opens one for `user`; else `user` defaults to the conversation's. `draft` is
    a message handed back by a stop, whose row becomes the turn's message. `limits` (`Limits`, or a
    mapping of its names) is what the run may take where its agent's limits allow more. With an
    `idempotency_key` that `user` has used for the same request, the run of that request is
    returned, with `replayed` set. Raises `InvalidContent`, `InvalidIdempotencyKey`, `UnknownAgent`,
    `NotADraft`, `QueueFull`, `IdempotencyMismatch`.
    """
    return _record(
        _checked(conversation, content, user, agent, idempotency_key, metadata, draft, limits),
        wakes=True,
    )


def enqueue_runs(requests: Iterable[Mapping[str, Any]]) -> list[AgentRun]:
    """Record many turns, each given as the arguments of `enqueue_run`: all or none, in order, with
    one wake.
    """
    checked = [_checked(**{**_DEFAULTS, **request}) for request in requests]
    with db.atomic():
        # All locks first, in id order: two batches in opposite orders would deadlock.
        turns.lock_conversations(
            request.conversation_id for request in checked if request.conversation_id is not None
        )
        runs = [_record(request, wakes=False) for request in checked]
        ready = [run.pk for run in runs if run.ready_at is not None and not run.replayed]
        wake.notify(wake.RUN_READY, ready[: wake.IDS_PER_PAYLOAD])
    return runs


_DEFAULTS: dict[str, Any] = dict.fromkeys(
    ("user", "agent", "idempotency_key", "metadata", "draft", "limits")
)


def _checked(
    conversation: Conversation | UUID | None,
    content: str,
    user: Any,
    agent: str | None,
    idempotency_key: str | None,
    metadata: Mapping[str, Any] | None,
    draft: Message | UUID | None,
    limits: Limits | Mapping[str, Any] | None,
) -> Request:
    if conversation is None and user is None:
        raise TypeError("enqueue_run() needs a conversation, or the user to open one for")
    if user is None and conversation is not None:
        user = _owner(conversation)
    check_content(content)
    check_idempotency_key(idempotency_key)
    metadata = {} if metadata is None else metadata
    check_metadata(metadata)
    asked, answering = check_limits(limits), resolve(agent)
    if draft is not None and conversation is None:
        raise NotADraft("A draft belongs to a conversation; give the conversation along with it.")
    return Request(
        user=getattr(user, "pk", user),
        content=content,
        agent=answering.name,
        conversation_id=conversation.pk if isinstance(conversation, Conversation) else conversation,
        draft_id=draft.pk if isinstance(draft, Message) else draft,
        metadata=metadata,
        idempotency_key=idempotency_key,
        limits=asked.given(),
        queue_seconds=answering.limits.lowered(asked).queue_seconds,
    )


def _owner(conversation: Conversation | UUID) -> Any:
    if isinstance(conversation, Conversation):
        return conversation.user_id
    return Conversation.objects.values_list("user_id", flat=True).get(pk=conversation)


def check_content(content: Any) -> None:
    """Raise `InvalidContent` unless the text can be a user's message."""
    limit = get_config().MAX_CONTENT_CHARS
    if not isinstance(content, str):
        raise InvalidContent(f"content must be a text, not {type(content).__name__}.")
    if not content.strip():
        raise InvalidContent(
            "content is empty; write at least one character that is not white space."
        )
    if len(content) > limit:
        raise InvalidContent(f"content has {len(content)} characters; at most {limit} are taken.")
    if (found := unstorable(content)) is not None:
        raise InvalidContent(f"content contains {found}, which cannot be stored; remove it.")


def check_metadata(metadata: Any) -> None:
    """Raise `InvalidContent` unless it is an object that JSON carries and PostgreSQL stores."""
    if not isinstance(metadata, Mapping):
        raise InvalidContent(f"metadata must be an object, not {type(metadata).__name__}.")
    if not metadata:
        return
    try:
        check_exact(encode(dict(metadata), "metadata"), dict(metadata), "metadata")
    except ValueError as error:
        raise InvalidContent(f"{error}.") from None


def check_limits(limits: Limits | Mapping[str, Any] | None) -> Limits:
    """The limits of a request; raises `InvalidContent` for names and values that are none."""
    try:
        return Limits.of(limits)
    except ValueError as error:
        raise InvalidContent(f"{error}.") from None


def check_idempotency_key(key: Any) -> None:
    """Raise `InvalidIdempotencyKey` unless it is None or 1 to 255 printable ASCII characters."""
    if key is None:
        return
    if not isinstance(key, str) or not 1 <= len(key) <= MAX_KEY_CHARS:
        size = f"{len(key)} characters" if isinstance(key, str) else type(key).__name__
        raise InvalidIdempotencyKey(f"The idempotency key has {size}; use 1 to {MAX_KEY_CHARS}.")
    if not key.isascii() or not key.isprintable():
        raise InvalidIdempotencyKey("The idempotency key must be printable ASCII.")


def _record(request: Request, *, wakes: bool) -> AgentRun:
    if request.idempotency_key is not None and (earlier := _earlier(request)) is not None:
        return earlier
    rows = db.script(*_statements(request, wakes=wakes), is_hot=True)
    if not rows:
        raise Conversation.DoesNotExist(f"Conversation {request.conversation_id} does not exist.")
    waiting, draft_found, turn, is_ready, created_at, *_ = rows[0]
    if turn is not None:
        return _instance(request, turn, is_ready, created_at)
    # The conflict's winner has committed: the statement waited for it.
    if request.idempotency_key is not None and (earlier := _earlier(request)) is not None:
        return earlier
    if not draft_found:
        raise NotADraft(
            f"Message {request.draft_id} is not a draft of conversation {request.conversation_id}."
        )
    limit = get_config().MAX_QUEUED_PER_CONVERSATION
    raise QueueFull(
        f"{waiting} turns wait in conversation {request.conversation_id} and at most {limit} may; "
        "wait for one to start, or stop the conversation."
    )


def _earlier(request: Request) -> AgentRun | None:
    run = AgentRun.objects.filter(
        user_id=request.user, idempotency_key=request.idempotency_key
    ).first()
    if run is None:
        return None
    if run.request_hash != request.fingerprint:
        raise IdempotencyMismatch(
            "This idempotency key was used for another request; use a new key."
        )
    run.replayed = True
    return run


@cache
def _blank() -> dict[str, Any]:
    """A new run's values by field, in the order in which the model takes them."""
    run = AgentRun()
    return {field.attname: getattr(run, field.attname) for field in AgentRun._meta.concrete_fields}


def _instance(request: Request, turn: int, is_ready: bool, created_at: Any) -> AgentRun:
    values = _blank() | {
        "id": request.run_id,
        "conversation_id": request.place_id,
        "user_id": request.user,
        "user_message_id": request.message_id,
        "reply_message_id": request.reply_message_id,
        "agent": request.agent,
        "input": request.snapshot,
        "metadata": dict(request.metadata),
        "limits": request.kept_limits,
        "turn": turn,
        "ready_at": created_at if is_ready else None,
        "idempotency_key": request.idempotency_key,
        "request_hash": request.fingerprint if request.idempotency_key else "",
        "created_at": created_at,
    }
    # As a row that was read: by names, a model takes three times as long.
    return AgentRun.from_db(db.alias(), list(values), list(values.values()))


def _statements(request: Request, *, wakes: bool) -> list[tuple[str, list[Any]]]:
    limit = get_config().MAX_QUEUED_PER_CONVERSATION
    key, context = request.idempotency_key, tracing.current()
    limits = request.kept_limits
    # Ids as their digits: the client writes a text into the statement at half the cost.
    run = [
        request.run_id.hex,
        request.user,
        request.message_id,
        request.reply_message_id.hex,
        request.agent,
        encode(request.snapshot, "the request"),
        encode(dict(request.metadata), "metadata") if request.metadata else "{}",
        limits and encode(limits, "limits"),
        key,
        request.fingerprint if key else "",
        context and json.dumps(context),
        limit,
    ]
    wake_up = [request.content, wakes]
    if request.conversation_id is None:
        return [(_sql().in_new, [request.place_id.hex, *run, request.user, *wake_up])]
    conversation, draft = request.conversation_id, request.draft_id
    place = [*([draft] if draft else []), limit, conversation]
    return [
        (_LOCK, [conversation]),
        (_sql().of_draft if draft else _sql().in_known, [*place, *run, *wake_up]),
    ]


_LOCK = "SELECT FROM agentruns_conversation WHERE id = %s::uuid FOR NO KEY UPDATE"

# Everything hangs on `run`: where its insert is refused (the key is taken, the queue is full, there
# is no such draft), nothing else is written.
_RECORD = """
WITH place AS ({place}
), run AS (
    INSERT INTO agentruns_agentrun (id, conversation_id, user_id, user_message_id,
        reply_message_id, agent, status, input, metadata, limits,
        turn, attempt, ready_at, worker_id, cancel_requested, traceback, idempotency_key,
            request_hash, created_at, trace_context)
    SELECT %s::uuid, place.conversation_id, %s::{user}, %s::uuid, %s::uuid, %s::text, 'queued',
        %s::jsonb, %s::jsonb, %s::jsonb,
        place.turn, 1, CASE WHEN NOT place.busy THEN place.moment END, '', false, '', %s::text,
            %s::text, place.moment, %s::jsonb
    FROM place WHERE place.waiting < %s AND place.draft_found
    ON CONFLICT (user_id, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
    RETURNING id, conversation_id, user_message_id, turn, ready_at, created_at
), conversation AS ({conversation}
), message AS ({message}
), event AS (
    INSERT INTO agentruns_runevent (run_id, seq, type, payload, created_at)
    SELECT run.id, 1, 'user_message_created', jsonb_build_object('message_id',
        run.user_message_id), run.created_at FROM run
    UNION ALL SELECT run.id, 2, 'run_queued', jsonb_build_object('run_id', run.id), run.created_at
        FROM run
), woken AS (
    SELECT pg_notify('{channel}', replace(run.id::text, '-', '')) FROM run
        WHERE run.ready_at IS NOT NULL AND %s
)
SELECT place.waiting, place.draft_found, run.turn, run.ready_at IS NOT NULL, run.created_at,
    (SELECT count(*) FROM woken), {pid}
FROM place LEFT JOIN run ON true
"""

_NEW_PLACE = """
    SELECT %s::uuid AS conversation_id, 1 AS turn, 0 AS waiting, false AS busy, true AS
        draft_found, clock_timestamp() AS moment"""

_NEW_CONVERSATION = """
    INSERT INTO agentruns_conversation (id, user_id, title, metadata, last_turn, created_at)
    SELECT run.conversation_id, %s::{user}, '', '{{}}', 1, run.created_at FROM run"""

# A scalar is planned in half the time of an EXISTS, and planning is a third of an enqueue.
_PLACE = """
    SELECT id AS conversation_id, last_turn + 1 AS turn, few.waiting, few.waiting > 0 OR (
        SELECT other.id FROM agentruns_agentrun other
        WHERE other.conversation_id = conversation.id AND other.status IN ('running', 'waiting')
        LIMIT 1) IS NOT NULL AS busy, {draft_found} AS draft_found, clock_timestamp() AS moment
    FROM agentruns_conversation conversation, LATERAL (
        SELECT count(*) AS waiting FROM (SELECT FROM agentruns_agentrun other
            WHERE other.conversation_id = conversation.id AND other.status = 'queued' LIMIT %s
        ) counted) few WHERE id = %s::uuid"""

_DRAFT_FOUND = """EXISTS (SELECT FROM agentruns_message draft
    WHERE draft.id = %s::uuid AND draft.conversation_id = conversation.id AND draft.status =
        'draft')"""

_NUMBERED = """
    UPDATE agentruns_conversation SET last_turn = run.turn FROM run WHERE agentruns_conversation.id
        = run.conversation_id"""

_NEW_MESSAGE = """
    INSERT INTO agentruns_message (id, conversation_id, role, content, parts, status, created_at)
    SELECT run.user_message_id, run.conversation_id, 'user', %s::text, '[]', 'queued',
        run.created_at FROM run"""

_DRAFT = """
    UPDATE agentruns_message SET content = %s::text, status = 'queued' FROM run WHERE
        agentruns_message.id = run.user_message_id"""


class _Sql(NamedTuple):
    """The statement of each kind of turn."""

    in_new: str
    in_known: str
    of_draft: str


@cache
def _sql() -> _Sql:
    # A text of which a plan is kept says the type of each value, the key of a user included.
    user = str(AgentRun._meta.get_field("user").db_type(db.connection()))
    if "char" in user:
        user = "text"  # a cast to a length would cut a longer key to one that may exist
    record = partial(_RECORD.format, user=user, channel=wake.RUN_READY, pid=plans.PID)
    known = partial(record, conversation=_NUMBERED)
    return _Sql(
        record(
            place=_NEW_PLACE,
            conversation=_NEW_CONVERSATION.format(user=user),
            message=_NEW_MESSAGE,
        ),
        known(place=_PLACE.format(draft_found="true"), message=_NEW_MESSAGE),
        known(place=_PLACE.format(draft_found=_DRAFT_FOUND), message=_DRAFT),
    )
