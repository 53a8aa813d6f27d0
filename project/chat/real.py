"""The assistant with a real model, through pydantic-ai: the same tools, the same events.

It is there where pydantic-ai is installed and a key is set (`ANTHROPIC_API_KEY`, `OPENAI_API_KEY`),
or `DEMO_MODEL` names a model as pydantic-ai does.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from typing import Any

from agentruns import RunContext

from . import calculator, notes

MODELS = {
    "ANTHROPIC_API_KEY": "anthropic:claude-haiku-4-5",
    "OPENAI_API_KEY": "openai:gpt-5-mini",
}
INSTRUCTIONS = "Answer in a few sentences. Search the notes first, and calculate with the tool."


def model_name() -> str | None:
    """Name the model that can answer here; None where there is none."""
    if importlib.util.find_spec("pydantic_ai") is None:
        return None
    keyed = (model for key, model in MODELS.items() if os.environ.get(key))
    return os.environ.get("DEMO_MODEL") or next(keyed, None)


async def answer(run: RunContext, model: Any) -> None:
    """Let the model answer the last message; a stop cancels it, and its connection with it."""
    *earlier, asked = await run.messages()
    stream = _agent(run, model).run_stream_events(
        asked["content"], message_history=_history(earlier)
    )
    async with stream as events:
        async for event in events:
            await _tell(run, event)


def _agent(run: RunContext, model: Any) -> Any:
    from pydantic_ai import Agent

    agent = Agent(model, instructions=INSTRUCTIONS)

    @agent.tool_plain
    async def search(query: str) -> list[str]:
        """Search the notes about runs, leases, journals and stops."""
        async with run.tool("search", {"query": query}) as call:
            call.result = notes.search(query)
        return list(call.result)

    @agent.tool_plain
    async def calculate(expression: str) -> str:
        """Work out a sum of numbers, +, -, * and /."""
        async with run.tool("calculator", {"expression": expression}) as call:
            try:
                call.result = calculator.evaluate(expression)
            except (ArithmeticError, ValueError) as error:
                call.error = {"code": "no_result", "message": str(error)}
        return str(call.result if call.error is None else call.error["message"])

    return agent


def _history(messages: Sequence[Mapping[str, Any]]) -> list[Any]:
    from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, UserPromptPart

    return [
        ModelRequest(parts=[UserPromptPart(content=message["content"])])
        if message["role"] == "user"
        else ModelResponse(parts=[TextPart(content=message["content"])])
        for message in messages
    ]


async def _tell(run: RunContext, event: Any) -> None:
    match event.event_kind:
        case "part_start" if event.part.part_kind in {"text", "thinking"}:
            await _say(run, event.part.part_kind, event.part.content)
        case "part_delta" if event.delta.part_delta_kind in {"text", "thinking"}:
            await _say(run, event.delta.part_delta_kind, event.delta.content_delta or "")
        case "agent_run_result":
            usage = event.result.usage
            usage = usage() if callable(usage) else usage
            await run.usage(input_tokens=usage.input_tokens, output_tokens=usage.output_tokens)


async def _say(run: RunContext, kind: str, words: str) -> None:
    if words:
        await (run.text(words) if kind == "text" else run.reasoning(words))
