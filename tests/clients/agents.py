"""Agents that clients of other wires watch. `gate` in the metadata names a file to wait for."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from agentruns import RunContext, agent

PATIENCE_SECONDS = 60.0


async def wait_for_gate(run: RunContext) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while "gate" in run.metadata and not Path(run.metadata["gate"]).exists():
        if time.monotonic() > deadline:
            raise TimeoutError("nobody opened the gate")
        await asyncio.sleep(0.01)


@agent("story")
async def story(run: RunContext) -> None:
    """All that a wire has to show, the gate in the middle of a text."""
    await run.reasoning("Let me ")
    await run.reasoning("think.")
    await run.text("Once\u2028upon \x85 a \x0b time ")
    async with run.tool("search", {"q": "漢字"}) as call:
        call.result = {"found": ["\u2028", None, 1.5]}
    async with run.tool("add") as call:
        await call.arguments_delta('{"a": ')
        await call.arguments_delta("1}")
        await call.arguments({"a": 1})
        call.result = 2
    await run.text("there was ")
    await run.emit("progress", percent=40)
    for word in ("a", "run", "that", "would", "not", "end", "before"):
        await run.text(f"{word} ")
    await run.text("the gate. ")
    await wait_for_gate(run)
    await run.text("It opened")
    await run.text(" 😀.")
    await run.usage(input_tokens=11, output_tokens=23)


@agent("endless")
async def endless(run: RunContext) -> None:
    """Speak in the middle of a call, until stopped."""
    await run.text("On and on")
    async with run.tool("wait", {"for": "ever"}):
        await asyncio.sleep(PATIENCE_SECONDS)


@agent("doomed")
async def doomed(run: RunContext) -> None:
    """As `endless`; tests give it to a worker of its own."""
    await endless(run)


@agent("curious")
async def curious(run: RunContext) -> None:
    """Ask twice, once with an object and once with a text."""
    await run.text("May I? ")
    approved = await run.ask({"approve": "refund"}, key="refund")
    await run.text(f"You said {approved}. ")
    name = await run.ask("Whose is it?", key="name")
    await run.text(f"It is of {name}.")


@agent("faulty")
async def faulty(run: RunContext) -> None:
    await run.text("So far so good")
    raise ValueError("a secret")
