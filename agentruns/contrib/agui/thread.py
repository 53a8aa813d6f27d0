"""What a client asks of a thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ... import db
from ...enqueue import enqueue_run
from ...errors import malformed
from ...models import AgentRun, Conversation, RunStatus
from ...text import unstorable
from ..wires import client_key, open_conversation
from .messages import WIRE

MAX_ID_CHARS = 500
_FOR_THE_AGENT = ("state", "tools", "context")


@dataclass(frozen=True, slots=True)
class Asked:
    """A checked `RunAgentInput`."""

    thread_id: str
    run_id: str
    body: dict[str, Any]

    @property
    def key(self) -> str:
        return client_key(WIRE, self.thread_id, self.run_id)

    @property
    def metadata(self) -> dict[str, Any]:
        """What the agent finds in `run.metadata`: the forwarded properties, and the rest apart."""
        last = self.body["messages"][-1]
        own = {"runId": self.run_id, "messageId": str(last.get("id") or "")}
        own |= {name: self.body[name] for name in _FOR_THE_AGENT if self.body.get(name)}
        forwarded = self.body.get("forwardedProps") or {}
        if not isinstance(forwarded, dict):
            raise malformed("forwardedProps", "Must be an object.")
        return {**forwarded, WIRE: own}


def asked_of(body: Any) -> Asked:
    """Raises `ValidationError` for ids that are none."""
    return Asked(id_of(body, "threadId"), id_of(body, "runId"), body)


def id_of(body: Any, name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_ID_CHARS or unstorable(value):
        raise malformed(name, f"Must be a text of 1 to {MAX_ID_CHARS} characters.")
    return value


def earlier(user: Any, asked: Asked) -> AgentRun | None:
    """The run that was started under these ids; posted again, they attach to it."""
    runs = AgentRun.objects.filter(user_id=user.pk)
    started = runs.filter(idempotency_key=asked.key).first()
    if started is not None:
        return started
    conversation = f"{WIRE}:{asked.thread_id}"
    runs = runs.filter(conversation__client_id=conversation, conversation__user_id=user.pk)
    # One that was started under an Idempotency-Key.
    return runs.filter(**{f"metadata__{WIRE}__runId": asked.run_id}).first()


def start(
    user: Any, asked: Asked, agent: str | None, idempotency_key: str | None = None
) -> AgentRun:
    """Enqueue the turn; of the messages, only the last one is new to the server."""
    content = _last_content(asked.body.get("messages"))
    with db.atomic():
        return enqueue_run(
            conversation=open_conversation(user, WIRE, asked.thread_id),
            user=user,
            content=content,
            agent=agent,
            metadata=asked.metadata,
            idempotency_key=idempotency_key or asked.key,
        )


def latest(conversation: Conversation) -> AgentRun | None:
    """The run under way, else the first that waits, else the last that started."""
    runs = AgentRun.objects.filter(conversation_id=conversation.pk)
    active = runs.active().in_turn_order().first()
    if active is not None:
        return active
    runs = runs.exclude(status=RunStatus.CANCELLED, started_at__isnull=True)
    return runs.order_by("-turn", "-attempt", "-pk").first()


def _last_content(messages: Any) -> str:
    last = messages[-1] if isinstance(messages, list) and messages else None
    if not isinstance(last, dict) or last.get("role") != "user":
        raise malformed("messages", "The last message must be the user's.")
    content = last.get("content")
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not all(_is_text(part) for part in content):
        raise malformed("messages", "Only text is supported in a user's message.")
    return "".join(part["text"] for part in content)


def _is_text(part: Any) -> bool:
    is_text = isinstance(part, dict) and part.get("type") == "text"
    return is_text and isinstance(part.get("text"), str)
