"""Run an agent of pydantic-ai: `agent("assistant")(from_pydantic_ai(my_agent))`."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.usage import RunUsage

from ...context import RunContext
from .calls import Calls, Usage, calls_of, placed, words

COUNTS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")


def from_pydantic_ai(
    agent: PydanticAgent[Any, Any], *, deps: Callable[[RunContext], Any] = lambda run: None
) -> Callable[[RunContext], Awaitable[None]]:
    """The agent's runs as runs of agentruns, with the conversation as their history.

    `deps` is called with the run and gives the dependencies of the agent's tools;
    `deps=lambda run: run` hands them the run. A stop cancels the framework's run, its tools and its
    provider's stream. An output that is no text is the reply as JSON.
    """

    async def run_agent(run: RunContext) -> None:
        *earlier, asked = await run.messages()
        stream = agent.run_stream_events(
            asked["content"], message_history=history(earlier), deps=deps(run)
        )
        events = None
        async with Calls(run) as calls:
            teller = _Teller(run, calls)
            try:
                async with stream as events:
                    async for event in events:
                        await teller.tell(event)
                        if event.event_kind == "function_tool_call":  # a response is whole
                            await teller.report(events.usage)
            finally:
                if events is not None:
                    with contextlib.suppress(UserError):  # it never started
                        await teller.report(events.usage)

    return placed(run_agent)


class _Teller:
    """Journals the events of one run of the framework."""

    def __init__(self, run: RunContext, calls: Calls) -> None:
        self._run = run
        self._calls = calls
        self._usage = Usage(run)
        self._has_text = False

    async def tell(self, event: Any) -> None:
        match event.event_kind:
            case "part_start":
                await self._part(event.part)
            case "part_delta":
                await self._delta(event.delta)
            case "function_tool_call" | "output_tool_call":
                part = event.part
                await self._calls.arguments(part.tool_call_id, part.tool_name, part.args)
            case "function_tool_result" | "output_tool_result":
                await self._result(event.part)
            case "agent_run_result" if not self._has_text:
                await self._run.text(words(event.result.output))

    async def report(self, usage: RunUsage) -> None:
        """Journal what was consumed since the last report."""
        await self._usage.report(**{name: getattr(usage, name) for name in COUNTS})

    async def _part(self, part: Any) -> None:
        match part.part_kind:
            case "text" | "thinking":
                await self._say(part.part_kind, part.content)
            case "tool-call":
                await self._calls.start(part.tool_call_id, part.tool_name)
                if isinstance(part.args, str):
                    await self._calls.delta(part.tool_call_id, part.args)

    async def _delta(self, delta: Any) -> None:
        match delta.part_delta_kind:
            case "text" | "thinking":
                await self._say(delta.part_delta_kind, delta.content_delta)
            case "tool_call" if isinstance(delta.args_delta, str) and delta.tool_call_id:
                await self._calls.delta(delta.tool_call_id, delta.args_delta)

    async def _say(self, kind: str, text: str | None) -> None:
        if not text:
            return
        if kind == "text":
            self._has_text = True
            await self._run.text(text)
        else:
            await self._run.reasoning(text)

    async def _result(self, part: Any) -> None:
        # What the model is told about a failure was written for it, or is about its own arguments.
        if getattr(part, "outcome", "success") == "success" and part.part_kind == "tool-return":
            await self._calls.result(part.tool_call_id, part.content)
        else:
            await self._calls.error(part.tool_call_id, words(part.content))


def history(messages: Sequence[dict[str, Any]]) -> list[ModelMessage]:
    """The transcript as messages of pydantic-ai, with its tool calls and their outcomes."""
    said: list[ModelMessage] = []
    for message in messages:
        match message["role"]:
            case "user":
                said.append(ModelRequest(parts=[UserPromptPart(content=message["content"])]))
            case "system":
                said.append(ModelRequest(parts=[SystemPromptPart(content=message["content"])]))
            case _:
                said += _reply(message)
    return said


def _reply(message: dict[str, Any]) -> list[ModelMessage]:
    said: list[ModelMessage] = []
    if calls := calls_of(message):
        called = [
            ToolCallPart(call["name"], call["arguments"], tool_call_id=call["call_id"])
            for call in calls
        ]
        returned = [
            ToolReturnPart(
                call["name"],
                call["outcome"],
                tool_call_id=call["call_id"],
                outcome="failed" if call["is_error"] else "success",
            )
            for call in calls
        ]
        said += [ModelResponse(parts=called), ModelRequest(parts=returned)]
    if message["content"]:
        said.append(ModelResponse(parts=[TextPart(content=message["content"])]))
    return said
