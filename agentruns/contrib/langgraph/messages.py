"""Messages as LangChain spells them. A reply is one message of the AI, and one for each result."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from ...models import Message as Row
from ...models import MessageRole

Message = dict[str, Any]
Part = dict[str, Any]

_OTHERS = {MessageRole.USER.value: "human", MessageRole.SYSTEM.value: "system"}


def from_rows(rows: Iterable[Row]) -> list[Message]:
    return [message for row in rows for message in from_row(row)]


def from_row(row: Row) -> list[Message]:
    if row.role in _OTHERS:
        return [_message(_OTHERS[row.role], str(row.pk), row.content)]
    return reply(str(row.pk), row.content, row.parts)


def human(message_id: str, content: str) -> Message:
    return _message("human", message_id, content)


def reply(
    message_id: str, content: str, parts: list[Part], usage: dict[str, Any] | None = None
) -> list[Message]:
    results = [tool(part) for part in parts if "result" in part or "error" in part]
    return [ai(message_id, content, parts, usage), *results]


def ai(
    message_id: str, content: str, parts: list[Part], usage: dict[str, Any] | None = None
) -> Message:
    calls = [
        {
            "name": part.get("name") or "tool",
            "args": part.get("arguments") or {},
            "id": part["call_id"],
            "type": "tool_call",
        }
        for part in parts
    ]
    more = {"tool_calls": calls, "invalid_tool_calls": [], "usage_metadata": usage}
    return {**_message("ai", message_id, content), **more}


def tool(part: Part) -> Message:
    """What a call came to; its failure as `{"error": ...}`."""
    has_failed = part.get("error") is not None
    outcome = {"error": part["error"]} if has_failed else part.get("result")
    return {
        **_message("tool", f"tool_{part['call_id']}", _text(outcome)),
        "tool_call_id": part["call_id"],
        "name": part.get("name") or "tool",
        "status": "error" if has_failed else "success",
    }


def chunk(message_id: str, content: str = "", **more: Any) -> Message:
    """A piece of the AI's message; clients join those of one id."""
    message = {**_message("AIMessageChunk", message_id, content), "tool_call_chunks": []}
    return {**message, **more}


def call_chunk(
    index: int, args: str, *, call_id: str | None = None, name: str | None = None
) -> Any:
    """A piece of a call's arguments; pieces of one index belong together."""
    kind = "tool_call_chunk"
    return {"name": name, "args": args, "id": call_id, "index": index, "type": kind}


def _message(kind: str, message_id: str, content: str) -> Message:
    return {
        "type": kind,
        "id": message_id,
        "content": content,
        "additional_kwargs": {},
        "response_metadata": {},
    }


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
