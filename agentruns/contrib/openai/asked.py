"""What a client asks for when it creates a response, and how it becomes a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.db.models import Q

from ... import db
from ...agents import resolve
from ...enqueue import check_metadata, enqueue_run
from ...exceptions import InvalidContent
from ...models import AgentRun, Conversation, RunStatus
from ...turns import lock_conversations
from .errors import Refused

WIRE = "openai"
"""Key of the run's metadata that holds what only this wire knows."""

_PROMPTS = ("system", "developer")
_TEXTS = ("input_text", "text")
_UNSUPPORTED = ("tools", "prompt", "context_management")


@dataclass(frozen=True, slots=True)
class Asked:
    """A checked body of `POST responses`."""

    content: str
    agent: str
    metadata: dict[str, Any]
    background: bool
    stream: bool
    conversation: Any
    """Id as the client gave it, or None; as is the next."""
    previous: Any


def parse(body: dict[str, Any]) -> Asked:
    """Check the body; raises `Refused` with the name of the parameter."""
    for name in _UNSUPPORTED:
        if body.get(name):
            raise Refused(
                f"{name} is not supported: the agent has its own. Leave it out.",
                param=name,
                code="unsupported_parameter",
            )
    content, instructions = _input(body.get("input"))
    metadata = parse_metadata(body.get("metadata"))
    conversation, previous = body.get("conversation"), body.get("previous_response_id")
    if conversation is not None and previous is not None:
        raise Refused(
            "Give conversation or previous_response_id, not both.", param="previous_response_id"
        )
    if isinstance(conversation, dict):
        conversation = conversation.get("id")
    background = _flag(body, "background")
    own = {
        "background": background,
        "instructions": "\n\n".join([*_instructions(body), *instructions]) or None,
        "previous_response_id": previous,
    }
    return Asked(
        content=content,
        agent=resolve(_text(body, "model")).name,
        metadata={**metadata, WIRE: own},
        background=background,
        stream=_flag(body, "stream"),
        conversation=conversation,
        previous=previous,
    )


def enqueue(
    asked: Asked, user: Any, conversation: Conversation | None, previous: AgentRun | None, key: Any
) -> AgentRun:
    """Enqueue the turn; a busy conversation has it wait."""
    with db.atomic():
        if previous is not None:
            lock_conversations([previous.conversation_id])
        run = enqueue_run(
            conversation=previous.conversation_id if previous else conversation,
            user=user,
            content=asked.content,
            agent=asked.agent,
            metadata=asked.metadata,
            idempotency_key=key,
        )
        if previous is not None and not run.replayed:
            _check_follows(run, previous)
    return run


def _check_follows(run: AgentRun, previous: AgentRun) -> None:
    never_started = Q(status=RunStatus.CANCELLED, started_at__isnull=True)
    later = AgentRun.objects.filter(
        conversation_id=run.conversation_id, turn__gt=previous.turn, turn__lt=run.turn
    )
    if later.exclude(never_started).exists():
        raise Refused(
            "previous_response_id is not the latest response of its conversation, and "
            "conversations do not branch here. Give the id of the latest.",
            param="previous_response_id",
            code="unsupported_branch",
        )


def parse_metadata(value: Any) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise Refused("metadata must be an object whose values are texts.", param="metadata")
    if WIRE in value:
        raise Refused(f"metadata: the key {WIRE!r} is taken; use another.", param="metadata")
    try:
        check_metadata(value)
    except InvalidContent as error:
        raise Refused(str(error), param="metadata") from None
    return value


def _input(value: Any) -> tuple[str, list[str]]:
    """The user's words, and prompts that stand beside them."""
    if isinstance(value, str):
        return value, []
    if not isinstance(value, list):
        raise Refused("input must be a text or a list of messages.", param="input")
    words, prompts = [], []
    for item in value:
        role = item.get("role") if isinstance(item, dict) else None
        if role == "user":
            words.append(_content(item))
        elif role in _PROMPTS:
            prompts.append(_content(item))
        else:
            raise _not_here(item)
    if not words:
        raise InvalidContent("input has no message of the user; add one.")
    return "\n\n".join(words), prompts


def _not_here(item: Any) -> Refused:
    given = item.get("role") or item.get("type") if isinstance(item, dict) else type(item).__name__
    return Refused(
        f"input takes messages of the user, the system and the developer only, not {given!r}: what "
        "was said before is kept here (name it by previous_response_id or conversation), and tools "
        "are run here.",
        param="input",
        code="unsupported_input",
    )


def _content(item: dict[str, Any]) -> str:
    content = item.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [None]
    texts = []
    for part in parts:
        part = part if isinstance(part, dict) else {}
        text = part.get("text")
        if not isinstance(text, str) or part.get("type") not in _TEXTS:
            raise Refused(
                "input: only text is supported in a message's content (input_text).",
                param="input",
                code="unsupported_input",
            )
        texts.append(text)
    return "".join(texts)


def _instructions(body: dict[str, Any]) -> list[str]:
    text = _text(body, "instructions")
    return [text] if text else []


def _text(body: dict[str, Any], name: str) -> str | None:
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise Refused(f"{name} must be a text.", param=name)
    return value


def _flag(body: dict[str, Any], name: str) -> bool:
    value = body.get(name)
    if value not in (None, True, False):
        raise Refused(f"{name} must be true or false.", param=name)
    return bool(value)
