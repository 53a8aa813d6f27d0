"""The assistant with a real model, through pydantic-ai: the same tools, the same events.

It is there where pydantic-ai is installed and a key is set (`ANTHROPIC_API_KEY`, `OPENAI_API_KEY`),
or `DEMO_MODEL` names a model as pydantic-ai does.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Awaitable, Callable
from functools import cache
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
    await _runner(model)(run)


@cache
def _runner(model: str) -> Callable[[RunContext], Awaitable[None]]:
    from pydantic_ai import Agent

    from agentruns.contrib.agents.pydantic_ai import from_pydantic_ai

    agent = Agent(model, instructions=INSTRUCTIONS)

    @agent.tool_plain
    async def search(query: str) -> list[str]:
        """Search the notes about runs, leases, journals and stops."""
        return list(notes.search(query))

    @agent.tool_plain(name="calculator")
    async def calculate(expression: str) -> str:
        """Work out a sum of numbers, +, -, * and /."""
        try:
            return str(calculator.evaluate(expression))
        except (ArithmeticError, ValueError) as error:
            return f"no result: {error}"

    return from_pydantic_ai(agent)
