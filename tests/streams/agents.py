"""What the worker of these tests runs."""

from __future__ import annotations

import asyncio

from agentruns import RunContext, agent


@agent("counting")
async def counting(run: RunContext) -> None:
    """Say the numbers up to `to`, one every `pause` seconds."""
    for number in range(run.metadata["to"]):
        await run.text(f"{number} ")
        await asyncio.sleep(run.metadata.get("pause", 0.01))


@agent("questioning")
async def questioning(run: RunContext) -> None:
    """Ask once."""
    await run.text("well? ")
    await run.text(f"{await run.ask('well?', key='well')} ")
