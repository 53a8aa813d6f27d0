"""What a client asks of a chat, over either transport."""

from __future__ import annotations

from typing import Any

from ... import db
from ...enqueue import enqueue_run
from ...errors import malformed
from ...exceptions import NotRetryable
from ...models import AgentRun, Conversation, RunStatus
from ...retry import retry_run
from ...text import unstorable
from ..wires import client_key, find_conversation, open_conversation

WIRE = "aisdk"
MAX_ID_CHARS = 500


def start(user: Any, body: Any, idempotency_key: str | None = None) -> AgentRun:
    """Enqueue the turn that a `POST` (or a `send`) of `useChat` asks for.

    The client sends its whole history; only its last message is new to the server. The same message
    sent again is the same run. Raises as `enqueue_run` and `retry_run` do, and `ValidationError`.
    """
    chat_id = chat_id_of(body.get("id"))
    trigger = body.get("trigger", "submit-message")
    if trigger == "regenerate-message":
        return _again(user, chat_id)
    if trigger != "submit-message":
        raise malformed("trigger", "Must be submit-message or regenerate-message.")
    message_id, content = _last_message(body.get("messages"))
    agent = body.get("agent")
    if agent is not None and not isinstance(agent, str):
        raise malformed("agent", "Must be a text.")
    key = idempotency_key
    if key is None and message_id:  # the client's own id; edited, it is another message
        key = client_key(WIRE, chat_id, message_id, content)
    with db.atomic():
        return enqueue_run(
            conversation=open_conversation(user, WIRE, chat_id),
            user=user,
            content=content,
            agent=agent,
            metadata=body.get("metadata"),
            idempotency_key=key,
        )


def running(conversation: Conversation) -> AgentRun | None:
    """The chat's run that is under way, else the first that waits; None where it is idle."""
    runs = AgentRun.objects.filter(conversation_id=conversation.pk).active().in_turn_order()
    return runs.first()


def chat_id_of(value: Any) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_ID_CHARS or unstorable(value):
        raise malformed("id", f"Must be a text of 1 to {MAX_ID_CHARS} characters.")
    return value


def _again(user: Any, chat_id: str) -> AgentRun:
    conversation = find_conversation(user, WIRE, chat_id)
    latest = _latest(conversation) if conversation else None
    if latest is None:
        raise NotRetryable("There is no reply to regenerate in this chat.")
    if latest.retry_of_id is not None and not latest.has_ended:  # asked for twice
        return latest
    return retry_run(latest)


def _latest(conversation: Conversation) -> AgentRun | None:
    runs = AgentRun.objects.filter(conversation_id=conversation.pk)
    runs = runs.exclude(status=RunStatus.CANCELLED, started_at__isnull=True)
    return runs.order_by("-turn", "-attempt", "-pk").first()


def _last_message(messages: Any) -> tuple[str, str]:
    """Id and text of the user's message that ends the history."""
    last = messages[-1] if isinstance(messages, list) and messages else None
    if not isinstance(last, dict) or last.get("role") != "user":
        raise malformed("messages", "The last message must be the user's.")
    parts = last.get("parts")
    if not isinstance(parts, list) or not all(_is_text(part) for part in parts):
        raise malformed("messages", "Only text parts are supported in a user's message.")
    return str(last.get("id", "")), "".join(part["text"] for part in parts)


def _is_text(part: Any) -> bool:
    is_text = isinstance(part, dict) and part.get("type") == "text"
    return is_text and isinstance(part.get("text"), str)
