"""Run an agent of the OpenAI Agents SDK: `agent("assistant")(from_openai_agents(my_agent))`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from agents import Agent as OpenAIAgent
from agents import RunConfig, Runner, RunResultStreaming

from ...context import RunContext
from .calls import Calls, Usage, calls_of, placed, words

REASONING = {"response.reasoning_summary_text.delta", "response.reasoning_text.delta"}


def from_openai_agents(
    agent: OpenAIAgent[Any],
    *,
    context: Callable[[RunContext], Any] = lambda run: None,
    run_config: RunConfig | None = None,
    max_turns: int = 10,
) -> Callable[[RunContext], Awaitable[None]]:
    """The agent's runs as runs of agentruns, with the conversation as their input.

    `context` is called with the run and gives the context of the agent's tools;
    `context=lambda run: run` hands them the run. A stop cancels the SDK's run, its tools and its
    provider's stream. An output that is no text is the reply as JSON.
    """

    async def run_agent(run: RunContext) -> None:
        said = history(await run.messages())
        async with Calls(run) as calls:
            teller = _Teller(run, calls)
            result = Runner.run_streamed(
                agent, said, context=context(run), run_config=run_config, max_turns=max_turns
            )
            try:
                async for event in result.stream_events():
                    await teller.tell(event)
                    if event.type == "run_item_stream_event":  # a response is whole
                        await teller.report(result)
            finally:
                await _ended(result)
                await teller.report(result)
            await teller.close(result.final_output)

    return placed(run_agent)


async def _ended(result: RunResultStreaming) -> None:
    """Cancel what still runs, and wait until its tools have come back."""
    if result.run_loop_task is not None and not result.run_loop_task.done():
        result.cancel()
        await asyncio.wait([result.run_loop_task])


class _Teller:
    """Journals the events of one run of the SDK."""

    def __init__(self, run: RunContext, calls: Calls) -> None:
        self._run = run
        self._calls = calls
        self._indexes: dict[int, str] = {}
        """Call ids of the model's response that is streamed, by their place in it."""
        self._usage = Usage(run)
        self._has_text = False

    async def tell(self, event: Any) -> None:
        match event.type:
            case "raw_response_event":
                await self._raw(event.data)
            case "run_item_stream_event":
                await self._item(event.name, event.item)

    async def report(self, result: RunResultStreaming) -> None:
        """Journal what was consumed since the last report."""
        used = result.context_wrapper.usage
        await self._usage.report(input_tokens=used.input_tokens, output_tokens=used.output_tokens)

    async def close(self, output: Any) -> None:
        """The run has ended well."""
        if output is not None and not self._has_text:
            await self._run.text(words(output))

    async def _raw(self, data: Any) -> None:
        match data.type:
            case "response.created":
                self._indexes.clear()
            case "response.output_text.delta" if data.delta:
                self._has_text = True
                await self._run.text(data.delta)
            case kind if kind in REASONING:
                await self._run.reasoning(data.delta)
            case "response.output_item.added" if data.item.type == "function_call":
                self._indexes[data.output_index] = data.item.call_id
                await self._calls.start(data.item.call_id, data.item.name)
            case "response.function_call_arguments.delta" if data.output_index in self._indexes:
                await self._calls.delta(self._indexes[data.output_index], data.delta)

    async def _item(self, name: str, item: Any) -> None:
        raw = item.raw_item
        match name:
            case "tool_called" | "handoff_requested" if getattr(raw, "call_id", None):
                arguments = getattr(raw, "arguments", None)
                await self._calls.arguments(raw.call_id, getattr(raw, "name", raw.type), arguments)
            case "tool_output":
                await self._calls.result(raw["call_id"], item.output)
            case "handoff_occured":  # the SDK's spelling
                await self._calls.result(raw["call_id"], raw.get("output"))


def history(messages: Sequence[dict[str, Any]]) -> list[Any]:
    """The transcript as input items of the Responses API, with its tool calls and their
    outcomes.
    """
    items: list[Any] = []
    for message in messages:
        calls = calls_of(message)
        items += [
            {
                "type": "function_call",
                "call_id": call["call_id"],
                "name": call["name"],
                "arguments": words(call["arguments"]),
            }
            for call in calls
        ]
        items += [
            {
                "type": "function_call_output",
                "call_id": call["call_id"],
                "output": call["outcome"],
            }
            for call in calls
        ]
        if message["content"]:
            items.append({"role": message["role"], "content": message["content"]})
    return items
