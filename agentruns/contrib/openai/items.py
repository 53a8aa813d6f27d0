"""The parts of a response's output: messages, reasoning, tool calls and their results."""

from __future__ import annotations

import json
from typing import Any

from ...text import is_number

Item = dict[str, Any]
Data = dict[str, Any]

IN_PROGRESS, COMPLETED, INCOMPLETE = "in_progress", "completed", "incomplete"


def message(item_id: str) -> Item:
    return {
        "id": item_id,
        "type": "message",
        "role": "assistant",
        "status": IN_PROGRESS,
        "content": [],
    }


def reasoning(item_id: str) -> Item:
    return {"id": item_id, "type": "reasoning", "status": IN_PROGRESS, "summary": []}


def function_call(item_id: str, call_id: str, name: str) -> Item:
    return {
        "id": item_id,
        "type": "function_call",
        "call_id": call_id,
        "name": name,
        "arguments": "",
        "status": IN_PROGRESS,
    }


def function_call_output(item_id: str, call_id: str, name: str, output: str) -> Item:
    return {
        "id": item_id,
        "type": "function_call_output",
        "call_id": call_id,
        "name": name,
        "output": output,
        "status": COMPLETED,
    }


def user_message(item_id: str, text: str) -> Item:
    return {
        "id": item_id,
        "type": "message",
        "role": "user",
        "status": COMPLETED,
        "content": [{"type": "input_text", "text": text}],
    }


def output_text(text: str) -> Data:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def summary_text(text: str) -> Data:
    return {"type": "summary_text", "text": text}


def as_text(value: Any) -> str:
    """A tool's result in the one form that the client has for it."""
    return value if isinstance(value, str) else json.dumps(value)


def usage(counts: Data) -> Data:
    """The counts of `usage` events in the shape whose every field the client wants."""
    given = counted(counts, "input_tokens")
    made = counted(counts, "output_tokens")
    return {
        "input_tokens": given,
        "input_tokens_details": {
            "cached_tokens": counted(counts, "cached_tokens"),
            "cache_write_tokens": counted(counts, "cache_write_tokens"),
        },
        "output_tokens": made,
        "output_tokens_details": {"reasoning_tokens": counted(counts, "reasoning_tokens")},
        "total_tokens": given + made,
    }


def counted(counts: Data, name: str) -> int:
    value = counts.get(name)
    return int(value) if is_number(value) else 0
