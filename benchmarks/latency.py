"""From the call of enqueue to the start of the agent's code, on an idle system.

Each round sends one job on each of three ways (a bare NOTIFY, procrastinate, agentruns), so that
whatever else the machine does meets all of them. The workers all wait the whole time.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psycopg

from .measure import percentile, summary
from .peers import bare
from .results import Result, at_most, figure, run_alone
from .server import Server, wait_until

SAMPLES = 600
"""Of each way; the p99 of fewer is the luck of three samples."""
WARM_UP = 20
GAP = 0.015, 0.05
WAYS = ("bare", "procrastinate", "agentruns")


def run(server: Server, *, rounds: int = 3, scale: float = 1.0) -> list[Result]:
    server.create_ours()
    server.create("procrastinate")
    server.create("bare")
    server.call("benchmarks.peers.procrastinate", "setup")
    with server.connect("bare") as connection:
        bare.setup(connection)
    started = {way: server.folder / f"samples-{way}" for way in WAYS}
    count = int(SAMPLES * rounds / 3)
    with (
        server.running("benchmarks.peers.bare", BENCH_SAMPLES=str(started["bare"])),
        server.running(
            "benchmarks.peers.procrastinate", "worker", BENCH_SAMPLES=str(started["procrastinate"])
        ),
        server.running("django", "runworker", BENCH_SAMPLES=str(started["agentruns"])),
    ):
        wait_until(lambda: all(path.exists() for path in started.values()))
        time.sleep(3)
        sent = server.call("benchmarks.latency", "send", count + WARM_UP)
        wait_until(lambda: all(len(_read(started[way])) >= len(sent[way]) for way in WAYS))
    return _results({way: _latencies(sent[way], _read(started[way])) for way in WAYS})


def _read(path: Path) -> dict[str, int]:
    lines = [line.split() for line in path.read_text().splitlines()]
    return {line[0]: int(line[1]) for line in lines if len(line) == 2}


def _latencies(sent: list[tuple[str, int, int]], started: dict[str, int]) -> dict[str, list[float]]:
    kept = sent[WARM_UP:]
    return {
        "call": [(started[key] - begun) / 1e6 for key, begun, _ in kept],
        "commit": [(started[key] - done) / 1e6 for key, _, done in kept],
    }


def _results(found: dict[str, dict[str, list[float]]]) -> list[Result]:
    ours, theirs, least = found["agentruns"], found["procrastinate"], found["bare"]
    commit = percentile(ours["commit"], 50) / percentile(theirs["commit"], 50)
    call = percentile(ours["call"], 99) / percentile(least["call"], 99)
    results = [
        at_most("P4", "commit to start p50, to procrastinate's", commit, 1.0, 0.5),
        at_most("P5", "call to start p99, to a bare NOTIFY", call, 4.0, 2.0),
    ]
    for way in WAYS:
        texts = [
            f"{what} p50 {percentile(values, 50):.2f} p99 {percentile(values, 99):.2f}"
            for what, values in found[way].items()
        ]
        summaries = {what: summary(values) for what, values in found[way].items()}
        results.append(
            figure("", f"{way}: call, commit to start", "; ".join(texts) + " ms", **summaries)
        )
    return results


async def send(count: int) -> dict[str, list[tuple[str, int, int]]]:
    """One job on each way, again and again; key, nanoseconds of call and of return."""
    import django

    django.setup()
    from agentruns import enqueue_run

    from .peers.procrastinate import app, noop

    connection = psycopg.connect(os.environ["BENCH_BARE_URL"], autocommit=True)

    async def by_bare(number: int) -> str:
        bare.send(connection, number)
        return str(number)

    async def by_procrastinate(number: int) -> str:
        await noop.defer_async(number=number)
        return str(number)

    async def by_agentruns(number: int) -> str:
        os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
        return str(enqueue_run(conversation=None, user=1, content="Hello", agent="noop").pk)

    senders: list[Callable[[int], Awaitable[str]]] = [by_bare, by_procrastinate, by_agentruns]
    sent: dict[str, list[tuple[str, int, int]]] = {way: [] for way in WAYS}
    chance = random.Random(1)
    async with app.open_async():
        for number in range(count):
            for way, sender in zip(WAYS, senders, strict=True):
                begun = time.monotonic_ns()
                key = await sender(number)
                sent[way].append((key, begun, time.monotonic_ns()))
                await asyncio.sleep(chance.uniform(*GAP))
    return sent


def main() -> None:
    if sys.argv[1:2] != ["send"]:
        run_alone("latency", run)
        return
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        answer: Any = runner.run(send(int(sys.argv[2])))
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
