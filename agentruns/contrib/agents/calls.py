"""What the adapters share: tool calls by the framework's id, usage, values as JSON, the
calls of the history.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, TypeVar

from pydantic_core import to_jsonable_python

from ...context import RunContext, ToolCall
from ...exceptions import RunStopped

F = TypeVar("F", bound=Callable[..., Any])

UNFINISHED = "The call was cut off; its outcome is unknown."


class Calls:
    """The tool calls of a run that are under way; those still open when the block ends are ended
    with it.
    """

    def __init__(self, run: RunContext) -> None:
        self._run = run
        self._open: dict[str, ToolCall] = {}
        self._whole: set[str] = set()
        """The calls whose arguments are journaled whole."""
        self._ended: set[str] = set()

    async def __aenter__(self) -> Calls:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        for call in self._open.values():
            if error is not None:
                call.record(error)
            try:
                await call.finish()
            except RunStopped:  # journaled all the same; what ended the block is raised
                if error is None:
                    raise

    async def start(self, call_id: str, name: str) -> None:
        """The model has begun to call the tool."""
        self._ended.discard(call_id)
        self._whole.discard(call_id)
        self._open[call_id] = await self._run.start_tool(name, call_id=call_id)

    async def delta(self, call_id: str, text: str) -> None:
        """A piece of the arguments' JSON."""
        if text and call_id in self._open:
            await self._open[call_id].arguments_delta(text)

    async def arguments(self, call_id: str, name: str, arguments: Any) -> None:
        """The arguments are whole, whether or not the call was seen to begin; a call that has ended
        may be named again by the step around it.
        """
        if call_id in self._whole or call_id in self._ended:
            return
        self._whole.add(call_id)
        if call_id in self._open:
            await self._open[call_id].arguments(parsed(arguments))
        else:
            call = await self._run.start_tool(name, parsed(arguments), call_id=call_id)
            self._open[call_id] = call

    async def result(self, call_id: str, result: Any) -> None:
        """The tool has returned. A call that nobody saw begin is not one of this run's."""
        if (call := self._end(call_id)) is not None:
            call.result = plain(result)
            await call.finish()

    async def error(self, call_id: str, words: str) -> None:
        """The tool has failed; the model, and whoever reads the journal, is told `words`."""
        if (call := self._end(call_id)) is not None:
            call.error = {"code": "tool_error", "message": words}
            await call.finish()

    def _end(self, call_id: str) -> ToolCall | None:
        self._ended.add(call_id)
        return self._open.pop(call_id, None)


class Usage:
    """Journals what a run consumes, from a framework that counts it up."""

    def __init__(self, run: RunContext) -> None:
        self._run = run
        self._reported: dict[str, int] = {}

    async def report(self, **totals: int) -> None:
        """Journal what was consumed since the last report."""
        new = {name: total - self._reported.get(name, 0) for name, total in totals.items()}
        self._reported = totals
        if any(new.values()):
            await self._run.usage(**{name: count for name, count in new.items() if count})


def placed(function: F) -> F:
    """Name the function after the line that asked the adapter for it, since agents of one name are
    told apart by where they are written.
    """
    caller = sys._getframe(2)
    function.__module__ = str(caller.f_globals.get("__name__"))
    function.__qualname__ = f"line {caller.f_lineno}"
    return function


def plain(value: Any) -> Any:
    """The value as JSON can carry it."""
    return to_jsonable_python(
        value, bytes_mode="base64", inf_nan_mode="strings", fallback=str, serialize_unknown=True
    )


def parsed(arguments: Any) -> Any:
    """Arguments that a framework keeps as JSON text; as they are where they are no JSON."""
    if not isinstance(arguments, str):
        return plain(arguments)
    try:
        return json.loads(arguments or "{}")
    except ValueError:
        return arguments


def words(value: Any) -> str:
    """The value as a text for the model."""
    return value if isinstance(value, str) else json.dumps(plain(value))


def calls_of(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The tool calls of a message of the transcript. A call that was cut off has an error: no
    provider takes a call without its outcome.
    """
    calls = [part for part in message["parts"] if part.get("type") == "tool_call"]
    return [
        {
            "arguments": {},
            **call,
            "is_error": "result" not in call,
            "outcome": words(call["result"] if "result" in call else _message(call.get("error"))),
        }
        for call in calls
    ]


def _message(error: Any) -> Any:
    if error is None:
        return UNFINISHED
    return error["message"] if isinstance(error, dict) and "message" in error else error
