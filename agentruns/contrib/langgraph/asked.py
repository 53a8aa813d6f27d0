"""What a client asks for when it creates a run, and how it becomes one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.http import QueryDict

from ... import db
from ...enqueue import check_metadata, enqueue_run
from ...exceptions import InvalidContent
from ...models import AgentRun, Conversation
from ...stop import stop_conversation
from ...turns import lock_conversations
from .errors import Busy, Invalid, unsupported
from .fold import MODES, VALUES

WIRE = "langgraph"
"""Prefix of its threads' client ids; key of the run's metadata that only this wire knows."""

_HUMAN = ("human", "user")
_STRATEGIES = ("enqueue", "reject", "interrupt")
_UNSUPPORTED = {
    "checkpoint": "A run goes on from the end of its thread.",
    "checkpoint_id": "A run goes on from the end of its thread.",
    "interrupt_before": "An agent has no nodes to stop at.",
    "interrupt_after": "An agent has no nodes to stop at.",
    "webhook": "Follow the run's stream, or join it.",
    "after_seconds": "A run starts as soon as it may.",
}


@dataclass(frozen=True, slots=True)
class Asked:
    """A checked body of `POST .../runs`."""

    content: str
    agent: str | None
    modes: list[str]
    strategy: str
    metadata: dict[str, Any]
    creates_thread: bool


def parse(body: dict[str, Any]) -> Asked:
    """Check the body; raises `Invalid` with the name of the field."""
    for name, way_out in _UNSUPPORTED.items():
        if body.get(name):
            raise unsupported(name, way_out)
    metadata = parse_metadata(body.get("metadata"))
    strategy = body.get("multitask_strategy") or "enqueue"
    if strategy not in _STRATEGIES:
        raise unsupported("multitask_strategy", f"Use one of {', '.join(_STRATEGIES)}.")
    agent = body.get("assistant_id")
    if not isinstance(agent, str):
        raise Invalid("assistant_id", "must be the name of an agent.")
    modes = parse_modes(body.get("stream_mode")) or [VALUES]
    own = {"stream_mode": modes, "multitask_strategy": strategy}
    own |= {name: body[name] for name in ("config", "context") if body.get(name)}
    return Asked(
        content=_content(body.get("input")),
        agent=agent,
        modes=modes,
        strategy=strategy,
        metadata={**metadata, WIRE: own},
        creates_thread=body.get("if_not_exists") == "create",
    )


def enqueue(
    asked: Asked, user: Any, conversation: Conversation | None, key: str | None
) -> AgentRun:
    """Enqueue the turn as its `multitask_strategy` says; one sent again changes nothing."""
    with db.atomic():
        if conversation is not None and asked.strategy != "enqueue":
            lock_conversations([conversation.pk])
            if not _was_sent_before(user, key):
                _make_way(conversation, asked.strategy)
        return enqueue_run(
            conversation=conversation,
            user=user,
            content=asked.content,
            agent=asked.agent,
            metadata=asked.metadata,
            idempotency_key=key,
        )


def _was_sent_before(user: Any, key: str | None) -> bool:
    if key is None:
        return False
    found = AgentRun.objects.filter(user_id=user.pk, idempotency_key=key)
    return bool(found.exists())


def _make_way(conversation: Conversation, strategy: str) -> None:
    if strategy == "interrupt":
        stop_conversation(conversation)
    elif AgentRun.objects.filter(conversation_id=conversation.pk).active().exists():
        raise Busy(
            "The thread is busy with another run. Wait for it, or use the multitask_strategy "
            "'enqueue' or 'interrupt'.",
            "thread_busy",
        )


def parse_modes(value: Any) -> list[str]:
    """The modes that are named, or none."""
    modes = [value] if isinstance(value, str) else value or []
    if not isinstance(modes, list):
        raise Invalid("stream_mode", "must be a text or a list of texts.")
    modes = [mode for mode in modes if mode != ""]
    for mode in modes:
        if mode not in MODES:
            raise unsupported(f"stream_mode {mode!r}", f"Use {', '.join(MODES)}.")
    return modes


def modes_in(query: QueryDict) -> list[str]:
    return parse_modes([mode for text in query.getlist("stream_mode") for mode in text.split(",")])


def modes_of(run: AgentRun) -> list[str]:
    """The modes that the run was created with."""
    return own_of(run).get("stream_mode") or [VALUES]


def own_of(run: AgentRun) -> dict[str, Any]:
    own = run.metadata.get(WIRE)
    return own if isinstance(own, dict) else {}


def parse_metadata(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Invalid("metadata", "must be an object.")
    if WIRE in value:
        raise Invalid("metadata", f"the key {WIRE!r} is taken; use another.")
    try:
        check_metadata(value)
    except InvalidContent as error:
        raise Invalid("metadata", str(error)) from None
    return value


def _content(value: Any) -> str:
    """The user's words in the input: its new messages, which must all be the user's."""
    said = value.get("messages") if isinstance(value, dict) else value
    if not isinstance(said, list):
        said = [said]
    return "\n\n".join(_words(message) for message in said)


def _words(message: Any) -> str:
    if isinstance(message, str):
        return message
    if isinstance(message, list | tuple) and len(message) == 2:
        message = {"role": message[0], "content": message[1]}
    if not isinstance(message, dict):
        raise Invalid("input", 'must be {"messages": [{"role": "user", "content": "..."}]}.')
    role = message.get("role") or message.get("type")
    if role not in _HUMAN:
        raise unsupported(
            f"input: a message of {role!r}",
            "Send the user's new messages only; the thread has what was said before.",
        )
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    return "".join(map(_text_of, parts))


def _text_of(part: Any) -> str:
    text = part.get("text") if isinstance(part, dict) else part
    if not isinstance(text, str):
        raise unsupported("input: content that is not text", "Send text.")
    return text
