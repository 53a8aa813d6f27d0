"""The agents that are measured. The environment says what they note down:

`BENCH_COUNTER`: a file whose first 8 bytes count the runs that started; `BENCH_SAMPLES`: a file
that gets a line `run id, monotonic nanoseconds` for each.
"""

from __future__ import annotations

import os
import time
from typing import Any

from agentruns import agent

from .measure import Counter

_counter = Counter(path) if (path := os.environ.get("BENCH_COUNTER")) else None
_samples = open(path, "w", buffering=1) if (path := os.environ.get("BENCH_SAMPLES")) else None


@agent("noop")
async def noop(run: Any) -> None:
    at = time.monotonic_ns()
    if _samples is not None:
        _samples.write(f"{run.id} {at}\n")
    if _counter is not None:
        _counter.hit()


@agent("idle")
async def idle(run: Any) -> None:
    """Runs until it is stopped."""
    import asyncio

    if _counter is not None:
        _counter.hit()
    await asyncio.Event().wait()


@agent("streamer")
async def streamer(run: Any) -> None:
    from . import stream

    await stream.source().take_part(run)
