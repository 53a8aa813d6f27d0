"""A run's journal as AG-UI events.

The client's verifier wants every span opened once, closed before the run finishes, and nothing in
between that is not open. Ids are made of the reply's id and a count of the fold's own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from uuid import UUID

from ..wires import interrupt_id

Frame = dict[str, Any]
Event = dict[str, Any]

_USAGE = {"input_tokens": "inputTokens", "output_tokens": "outputTokens"}


class Fold:
    """Takes the events of one run from the first; gives the AG-UI events of each.

    `thread_id` and `run_id` are the client's own. Questions up to the seq `settled` are open no
    longer; the first one behind it ends the client's run.
    """

    def __init__(
        self, thread_id: str, run_id: str, reply_message_id: UUID, settled: int = 0
    ) -> None:
        self._ids = {"threadId": thread_id, "runId": run_id}
        self._settled = settled
        self._native_run_id = ""
        self._reply = str(reply_message_id)
        self._counts = {"message": 0, "reasoning": 0}
        self._open: tuple[str, str, str] | None = None
        """Kind, stream and message id of the text or reasoning that takes deltas."""
        self._parent: str | None = None
        """The message that tool calls belong to: the last text, else one without text."""
        self._arguments: dict[str, tuple[str, str]] = {}
        """Name, and arguments so far, of the calls that still take arguments."""
        self._calls: set[str] = set()
        self._usage: dict[str, int] = {}
        self._acts = {
            "tool_call_started": self._tool_started,
            "tool_call_delta": self._tool_delta,
            "tool_call_arguments": self._tool_arguments,
            "tool_call_finished": self._tool_finished,
            "input_required": self._ask,
            "complete": self._end,
        }

    def __call__(self, event: Event) -> Iterator[Frame]:
        match event["type"]:
            case "user_message_created" | "run_started" | "run_resumed" | "input_received":
                return
            case "run_queued":
                self._native_run_id = event["run_id"]
                yield {"type": "RUN_STARTED", **self._ids}
            case "content_delta" if event["stream"] == "text":
                yield from self._delta("message", event)
            case "reasoning_delta":
                yield from self._delta("reasoning", event)
            case "usage":
                self._count(event)
            case name if name in self._acts:
                yield from self._acts[name](event)
            case name:
                value = {key: given for key, given in event.items() if key not in ("type", "seq")}
                yield {"type": "CUSTOM", "name": name, "value": value}

    def reopened(self) -> Iterator[Frame]:
        """What is open, opened once more: for a client that has the messages and no spans."""
        if self._open is not None:
            yield from _opening(self._open[0], self._open[2])
        for call_id, (name, _) in self._arguments.items():
            yield {"type": "TOOL_CALL_START", "toolCallId": call_id, "toolCallName": name}

    def _delta(self, kind: str, event: Event) -> Iterator[Frame]:
        if not event["delta"]:
            return
        if self._open is None or self._open[:2] != (kind, event["stream"]):
            yield from self._close()
            self._open = kind, event["stream"], self._new_id(kind)
            if kind == "message":
                self._parent = self._open[2]
            yield from _opening(kind, self._open[2])
        content = "TEXT_MESSAGE_CONTENT" if kind == "message" else "REASONING_MESSAGE_CONTENT"
        yield {"type": content, "messageId": self._open[2], "delta": event["delta"]}

    def _new_id(self, kind: str) -> str:
        self._counts[kind] += 1
        count = self._counts[kind]
        if kind == "reasoning":
            return f"{self._reply}-reasoning-{count}"
        return self._reply if count == 1 else f"{self._reply}-{count}"

    def _close(self) -> Iterator[Frame]:
        if self._open is None:
            return
        kind, _, message_id = self._open
        self._open = None
        if kind == "message":
            yield {"type": "TEXT_MESSAGE_END", "messageId": message_id}
        else:
            yield {"type": "REASONING_MESSAGE_END", "messageId": message_id}
            yield {"type": "REASONING_END", "messageId": message_id}

    def _tool_started(self, event: Event) -> Iterator[Frame]:
        yield from self._close()
        call_id, name, arguments = event["call_id"], event["name"], event["arguments"]
        if self._parent is None:
            self._parent = self._new_id("message")
        self._arguments[call_id] = name, ""
        self._calls.add(call_id)
        start = {"type": "TOOL_CALL_START", "toolCallId": call_id, "toolCallName": name}
        yield {**start, "parentMessageId": self._parent}
        if arguments is not None:
            yield from self._close_call(call_id, json.dumps(arguments))

    def _tool_delta(self, event: Event) -> Iterator[Frame]:
        call_id, delta = event["call_id"], event["delta"]
        if call_id in self._arguments and delta:
            name, streamed = self._arguments[call_id]
            self._arguments[call_id] = name, streamed + delta
            yield {"type": "TOOL_CALL_ARGS", "toolCallId": call_id, "delta": delta}

    def _tool_arguments(self, event: Event) -> Iterator[Frame]:
        yield from self._close_call(event["call_id"], json.dumps(event["arguments"]))

    def _close_call(self, call_id: str, arguments: str = "") -> Iterator[Frame]:
        """End a call's arguments; they are sent whole where nothing of them was streamed."""
        if call_id not in self._arguments:
            return
        _, streamed = self._arguments.pop(call_id)
        if not streamed and arguments:
            yield {"type": "TOOL_CALL_ARGS", "toolCallId": call_id, "delta": arguments}
        yield {"type": "TOOL_CALL_END", "toolCallId": call_id}

    def _tool_finished(self, event: Event) -> Iterator[Frame]:
        call_id = event["call_id"]
        yield from self._close_call(call_id)
        if call_id in self._calls:
            self._calls.remove(call_id)
            yield {
                "type": "TOOL_CALL_RESULT",
                "messageId": f"{self._reply}-{call_id}",
                "toolCallId": call_id,
                "role": "tool",
                "content": outcome_text(event),
            }

    def _count(self, event: Event) -> None:
        for name, theirs in _USAGE.items():
            if type(event.get(name)) is int and event[name] >= 0:
                self._usage[theirs] = self._usage.get(theirs, 0) + event[name]

    def _ask(self, event: Event) -> Iterator[Frame]:
        # Answered or not: later ids must not depend on when the client came.
        yield from self._close_all()
        if event["seq"] > self._settled:
            outcome = {"type": "interrupt", "interrupts": [self._interrupt(event)]}
            yield {"type": "RUN_FINISHED", **self._ids, "outcome": outcome}

    def _interrupt(self, event: Event) -> Frame:
        key, question = event["key"], event["question"]
        interrupt = {
            "id": interrupt_id(self._native_run_id, key),
            "reason": "input_required",
            "metadata": {"key": key, "question": question},
        }
        if isinstance(question, str):
            interrupt["message"] = question
        if event.get("expires_at"):
            interrupt["expiresAt"] = event["expires_at"]
        return interrupt

    def _close_all(self) -> Iterator[Frame]:
        yield from self._close()
        for call_id in list(self._arguments):
            yield from self._close_call(call_id)

    def _end(self, event: Event) -> Iterator[Frame]:
        yield from self._close_all()
        usage = {"usage": [self._usage]} if self._usage else {}
        match event["status"]:
            case "completed":
                told = {"outcome": {"type": "success"}, **usage}
                yield {"type": "RUN_FINISHED", **self._ids, **told}
            case "cancelled":
                told = {"outcome": {"type": "cancelled"}, "result": {"status": "cancelled"}}
                yield {"type": "RUN_FINISHED", **self._ids, **told, **usage}
            case _:
                error = event["error"] or {}
                message, code = error.get("message", "The run failed."), error.get("code", "failed")
                yield {"type": "RUN_ERROR", "message": message, "code": code, **usage}


def _opening(kind: str, message_id: str) -> Iterator[Frame]:
    if kind == "message":
        yield {"type": "TEXT_MESSAGE_START", "messageId": message_id, "role": "assistant"}
    else:
        yield {"type": "REASONING_START", "messageId": message_id}
        start = {"type": "REASONING_MESSAGE_START", "messageId": message_id}
        yield {**start, "role": "reasoning"}


def outcome_text(outcome: dict[str, Any]) -> str:
    """A call's result, or its error, as the text that a tool message holds."""
    if outcome.get("error") is not None:
        return json.dumps({"error": outcome["error"]})
    result = outcome.get("result")
    return result if isinstance(result, str) else json.dumps(result)
