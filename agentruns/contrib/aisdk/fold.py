"""A run's journal as the chunks of a UI message stream.

The client checks every chunk against a schema: an unknown type or a null for an optional field is
fatal, a delta needs its start, and a part that is open at the end looks unfinished for ever.
The client has no cursor: it is always sent the whole message, whose id it knows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from uuid import UUID

from ...text import is_number

Chunk = dict[str, Any]
Event = dict[str, Any]

KINDS = {"content_delta": "text", "reasoning_delta": "reasoning"}
UNFINISHED = "The run ended before this call did."


class Fold:
    """Takes the events of one run from the first; gives the chunks of each."""

    def __init__(self, run_id: UUID, reply_message_id: UUID) -> None:
        self._start = {
            "type": "start",
            "messageId": str(reply_message_id),
            "messageMetadata": {"runId": str(run_id)},
        }
        self._parts = 0
        self._open: tuple[str, str, str] | None = None
        """Kind, stream and part id of the part that takes deltas."""
        self._inputs: dict[str, tuple[str, str]] = {}
        """Name, and arguments as streamed so far, of the calls whose input is not whole yet."""
        self._running: list[str] = []
        """The calls whose input is whole, and that have not returned."""
        self._has_started = False
        self._usage: dict[str, float] = {}
        """The sum of what the run has reported, which replaces what was told before."""
        self._tools = {
            "tool_call_started": self._tool_started,
            "tool_call_delta": self._tool_delta,
            "tool_call_arguments": self._tool_arguments,
            "tool_call_finished": self._tool_finished,
        }

    def __call__(self, event: Event) -> Iterator[Chunk]:
        match event["type"]:
            case "user_message_created" | "run_resumed":
                return
            case "run_queued":
                yield self._start
            case "run_started":
                self._has_started = True
                yield {"type": "start-step"}
            case "content_delta" if event["stream"] == "text":
                yield from self._delta(event)
            case "reasoning_delta":
                yield from self._delta(event)
            case "usage":
                yield self._used(event)
            case "complete":
                yield from self._end(event)
            case name if name in self._tools:
                yield from self._tools[name](event)
            case name:
                yield {"type": f"data-{name}", "data": _own(event)}

    def _used(self, event: Event) -> Chunk:
        for name, count in _own(event).items():
            if is_number(count):
                self._usage[name] = self._usage.get(name, 0) + count
        return {"type": "message-metadata", "messageMetadata": {"usage": dict(self._usage)}}

    def _delta(self, event: Event) -> Iterator[Chunk]:
        kind, stream = KINDS[event["type"]], event["stream"]
        if self._open is None or self._open[:2] != (kind, stream):
            yield from self._close()
            self._parts += 1
            self._open = kind, stream, f"{kind}-{self._parts}"
            yield {"type": f"{kind}-start", "id": self._open[2]}
        yield {"type": f"{kind}-delta", "id": self._open[2], "delta": event["delta"]}

    def _close(self) -> Iterator[Chunk]:
        if self._open is not None:
            kind, _, part = self._open
            self._open = None
            yield {"type": f"{kind}-end", "id": part}

    def _tool_started(self, event: Event) -> Iterator[Chunk]:
        yield from self._close()
        call_id, name = event["call_id"], event["name"]
        self._inputs[call_id] = name, ""
        yield {"type": "tool-input-start", "toolName": name, **_call(call_id)}
        if event["arguments"] is not None:
            yield from self._tool_input(call_id, event["arguments"])

    def _tool_delta(self, event: Event) -> Iterator[Chunk]:
        call_id, delta = event["call_id"], event["delta"]
        if call_id in self._inputs:
            name, streamed = self._inputs[call_id]
            self._inputs[call_id] = name, streamed + delta
            yield {"type": "tool-input-delta", "toolCallId": call_id, "inputTextDelta": delta}

    def _tool_arguments(self, event: Event) -> Iterator[Chunk]:
        yield from self._tool_input(event["call_id"], event["arguments"])

    def _tool_input(self, call_id: str, arguments: Any) -> Iterator[Chunk]:
        if call_id in self._inputs:
            name, _ = self._inputs.pop(call_id)
            self._running.append(call_id)
            chunk = {"type": "tool-input-available", "toolName": name, "input": arguments}
            yield chunk | _call(call_id)

    def _tool_finished(self, event: Event) -> Iterator[Chunk]:
        call_id = event["call_id"]
        if call_id in self._inputs:  # an output needs its input
            yield from self._tool_input(call_id, _parsed(self._inputs[call_id][1]))
        if call_id not in self._running:
            return
        self._running.remove(call_id)
        if event.get("error") is not None:
            words = _words(event["error"])
            yield {"type": "tool-output-error", "errorText": words, **_call(call_id)}
        else:
            output = event.get("result")
            yield {"type": "tool-output-available", "output": output, **_call(call_id)}

    def _end(self, event: Event) -> Iterator[Chunk]:
        yield from self._close()
        yield from self._unfinished()
        if self._has_started:
            yield {"type": "finish-step"}
        match event["status"]:
            case "completed":
                yield {"type": "finish", "finishReason": "stop"}
            case "cancelled":
                yield {"type": "abort", "reason": "stopped"}
            case _:
                yield {"type": "error", "errorText": _words(event["error"])}

    def _unfinished(self) -> Iterator[Chunk]:
        for call_id, (name, streamed) in self._inputs.items():
            told = {"toolName": name, "input": _parsed(streamed), "errorText": UNFINISHED}
            yield {"type": "tool-input-error", **told, **_call(call_id)}
        for call_id in self._running:
            yield {"type": "tool-output-error", "errorText": UNFINISHED, **_call(call_id)}


def _own(event: Event) -> dict[str, Any]:
    return {name: value for name, value in event.items() if name not in ("type", "seq")}


def _call(call_id: str) -> dict[str, Any]:
    # Run by the server, and of a tool that the client need not know.
    return {"toolCallId": call_id, "dynamic": True, "providerExecuted": True}


def _parsed(arguments: str) -> Any:
    try:
        return json.loads(arguments) if arguments else {}
    except ValueError:
        return {"text": arguments}


def _words(error: Any) -> str:
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        return str(error["message"])
    return error if isinstance(error, str) else json.dumps(error)
