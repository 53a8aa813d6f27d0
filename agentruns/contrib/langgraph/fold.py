"""A run's journal as the events of a run's stream.

The id of a frame is `seq-k`, `k` its index among all frames of its row, those of modes that the
client has not asked for included: it comes back with one mode's ids and may ask for another.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ...reply import Reply
from ...text import is_number
from ..wires import interrupt_id
from . import messages
from .messages import Message

VALUES, MESSAGES, UPDATES, CUSTOM = "values", "messages-tuple", "updates", "custom"
MODES = (VALUES, MESSAGES, UPDATES, CUSTOM)
INTERRUPT = "__interrupt__"
ALWAYS = ""
"""Stands for the mode of what every client gets."""

_COUNTS = ("input_tokens", "output_tokens")

Event = dict[str, Any]
Frame = tuple[int, int, str, Any]
"""Seq, index within the row, name of the event, data."""


class Piece(NamedTuple):
    """A frame that is made only if its mode was asked for."""

    mode: str
    event: str
    data: Callable[[], Any]


class Fold:
    """Takes the events of one run from the first; gives the frames of the modes of each.

    Questions up to the seq `settled` are open no longer; the first one behind it ends the stream.
    """

    def __init__(self, run_id: str, reply_id: str, modes: list[str], settled: int = 0) -> None:
        self.history: list[Message] = []
        """The thread as the turn found it, its own message last; needed from `run_started` on."""
        self._run_id = run_id
        self._reply_id = reply_id
        self._settled = settled
        self._modes = {*modes, ALWAYS}
        self._reply = Reply()
        self._indexes: dict[str, int] = {}
        self._streamed: set[str] = set()
        """Calls of whose arguments the client has pieces."""
        self._usage: dict[str, Any] = {}
        self._has_begun = False
        self._attempt = 1
        self._pieces: dict[str, Callable[[Event], Iterator[Piece]]] = {
            "user_message_created": self._nothing,
            "run_queued": self._nothing,
            "run_resumed": self._nothing,
            "run_started": self._started,
            "content_delta": self._text,
            "reasoning_delta": self._reasoning,
            "tool_call_started": self._call_started,
            "tool_call_delta": self._call_delta,
            "tool_call_arguments": self._call_arguments,
            "tool_call_finished": self._call_finished,
            "usage": self._used,
            "input_required": self._asked,
            "input_received": self._answered,
            "complete": self._end,
        }

    def __call__(self, event: Event) -> Iterator[Frame]:
        self._reply.add(event["type"], event)
        pieces = self._pieces.get(event["type"], self._custom)(event)
        for k, piece in enumerate(pieces):
            if piece.mode in self._modes:
                yield event["seq"], k, piece.event, piece.data()

    def values(self) -> dict[str, Any]:
        """The state so far."""
        said: list[Message] = []
        if self._reply.has_text or self._reply.parts:
            said = messages.reply(
                self._reply_id, self._reply.content, self._reply.parts, self._usage_metadata
            )
        return {"messages": [*self.history, *said]}

    def _nothing(self, event: Event) -> Iterator[Piece]:
        return iter(())

    def _started(self, event: Event) -> Iterator[Piece]:
        yield self._metadata(event["attempt"])
        yield Piece(VALUES, "values", self.values)

    def _text(self, event: Event) -> Iterator[Piece]:
        if event["stream"] == "text":
            yield self._chunk(event["delta"])
        else:  # beside the reply
            yield from self._custom(event)

    def _reasoning(self, event: Event) -> Iterator[Piece]:
        yield self._chunk("", additional_kwargs={"reasoning_content": event["delta"]})

    def _call_started(self, event: Event) -> Iterator[Piece]:
        call_id = event["call_id"]
        index = self._indexes[call_id] = len(self._indexes)
        arguments = event.get("arguments")
        text = "" if arguments is None else json.dumps(arguments)
        if text:
            self._streamed.add(call_id)
        name = event.get("name") or "tool"
        yield self._call_chunk(messages.call_chunk(index, text, call_id=call_id, name=name))

    def _call_delta(self, event: Event) -> Iterator[Piece]:
        if event["call_id"] in self._indexes:
            self._streamed.add(event["call_id"])
            index = self._indexes[event["call_id"]]
            yield self._call_chunk(messages.call_chunk(index, event["delta"]))

    def _call_arguments(self, event: Event) -> Iterator[Piece]:
        call_id = event["call_id"]
        if call_id in self._indexes and call_id not in self._streamed:
            text = json.dumps(event["arguments"])
            yield self._call_chunk(messages.call_chunk(self._indexes[call_id], text))

    def _call_finished(self, event: Event) -> Iterator[Piece]:
        result = messages.tool(event)
        yield Piece(MESSAGES, "messages", lambda: [result, self._place("tools")])
        yield Piece(UPDATES, "updates", lambda: {"tools": {"messages": [result]}})
        yield Piece(VALUES, "values", self.values)

    def _used(self, event: Event) -> Iterator[Piece]:
        counts = {name: event[name] for name in _COUNTS if is_number(event.get(name))}
        for name, value in counts.items():
            self._usage[name] = self._usage.get(name, 0) + value
        yield self._chunk("", usage_metadata=_metadata(counts))

    def _custom(self, event: Event) -> Iterator[Piece]:
        data = {name: value for name, value in event.items() if name != "seq"}
        yield Piece(CUSTOM, "custom", lambda: data)

    def _asked(self, event: Event) -> Iterator[Piece]:
        interrupts = {INTERRUPT: [interrupt(self._run_id, event["key"], event["question"])]}
        yield Piece(UPDATES, "updates", lambda: interrupts)
        yield Piece(VALUES, "values", lambda: {**self.values(), **interrupts})
        if event["seq"] > self._settled:
            yield Piece(ALWAYS, "end", lambda: None)

    def _answered(self, event: Event) -> Iterator[Piece]:
        # The first frame of the stream that follows the answer.
        yield self._metadata(self._attempt)

    def _end(self, event: Event) -> Iterator[Piece]:
        if not self._has_begun:  # stopped while it waited
            yield self._metadata(1)
        if self._reply.has_text or self._reply.parts:
            said = self.values()["messages"][len(self.history)]
            yield Piece(UPDATES, "updates", lambda: {"agent": {"messages": [said]}})
        yield Piece(VALUES, "values", self.values)
        if event["status"] == "failed":
            yield Piece(ALWAYS, "error", lambda: error_of(event.get("error")))
        yield Piece(ALWAYS, "end", lambda: None)

    def _metadata(self, attempt: int) -> Piece:
        self._has_begun, self._attempt = True, attempt
        return Piece(ALWAYS, "metadata", lambda: {"run_id": self._run_id, "attempt": attempt})

    def _call_chunk(self, piece: Any) -> Piece:
        return self._chunk("", tool_call_chunks=[piece])

    def _chunk(self, content: str, **more: Any) -> Piece:
        chunk = messages.chunk(self._reply_id, content, **more)
        return Piece(MESSAGES, "messages", lambda: [chunk, self._place("agent")])

    def _place(self, node: str) -> dict[str, Any]:
        return {"langgraph_node": node, "run_id": self._run_id}

    @property
    def _usage_metadata(self) -> dict[str, Any] | None:
        return _metadata(self._usage) if self._usage else None


def interrupt(run_id: str, key: str, question: Any) -> dict[str, Any]:
    """A question as this wire spells it."""
    return {"id": interrupt_id(run_id, key), "value": question}


def error_of(error: dict[str, Any] | None) -> dict[str, str]:
    """The run's error as this wire spells it."""
    error = error or {}
    message = str(error.get("message", "The run failed."))
    return {"error": str(error.get("code", "failed")), "message": message}


def _metadata(counts: dict[str, Any]) -> dict[str, Any]:
    given, made = counts.get("input_tokens", 0), counts.get("output_tokens", 0)
    return {"input_tokens": given, "output_tokens": made, "total_tokens": given + made}
