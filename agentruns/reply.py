"""What a run has said so far: a fold over its events, the same in the worker's memory and over the
journal's rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


class Reply:
    """The reply's text and its tool calls, in call order."""

    def __init__(self, events: Iterable[tuple[str, Mapping[str, Any]]] = ()) -> None:
        self._pieces: list[str] = []
        self._calls: dict[str, dict[str, Any]] = {}
        for type_, payload in events:
            self.add(type_, payload)

    def add(self, type_: str, payload: Mapping[str, Any]) -> None:
        match type_:
            case "content_delta":
                self.say(payload["stream"], payload["delta"])
            case "tool_call_started":
                self._calls[payload["call_id"]] = {
                    "type": "tool_call",
                    "call_id": payload["call_id"],
                    "name": payload["name"],
                    "arguments": payload["arguments"],
                }
            case "tool_call_arguments":
                self._call(payload)["arguments"] = payload["arguments"]
            case "tool_call_finished":
                outcome = "error" if "error" in payload else "result"
                self._call(payload)[outcome] = payload.get(outcome)

    def say(self, stream: str, delta: str) -> None:
        """`add` of a `content_delta`, the most frequent event by far."""
        if stream == "text":
            self._pieces.append(delta)

    def _call(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        return self._calls.setdefault(
            payload["call_id"], {"type": "tool_call", "call_id": payload["call_id"]}
        )

    @property
    def content(self) -> str:
        return "".join(self._pieces)

    @property
    def parts(self) -> list[dict[str, Any]]:
        return list(self._calls.values())

    @property
    def has_text(self) -> bool:
        return any(self._pieces)
