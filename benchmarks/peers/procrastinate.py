"""procrastinate's no-op: its async worker with LISTEN, and `defer` in a loop.

`python -m benchmarks.peers.procrastinate worker|setup|enqueue N`
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time

import procrastinate

from benchmarks.measure import Counter

CONCURRENCY = 30
_counter = Counter(path) if (path := os.environ.get("BENCH_COUNTER")) else None
_samples = open(path, "w", buffering=1) if (path := os.environ.get("BENCH_SAMPLES")) else None

app = procrastinate.App(
    connector=procrastinate.PsycopgConnector(
        conninfo=os.environ["BENCH_PROCRASTINATE_URL"], min_size=1, max_size=CONCURRENCY
    )
)


@app.task(name="noop", queue="default")
async def noop(number: int = 0) -> None:
    at = time.monotonic_ns()
    if _samples is not None:
        _samples.write(f"{number} {at}\n")
    if _counter is not None:
        _counter.hit()


async def setup() -> None:
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


async def enqueue(count: int) -> None:
    async with app.open_async():
        for _ in range(50):
            await noop.defer_async()
        began, cpu = time.monotonic(), time.process_time()
        for _ in range(count):
            await noop.defer_async()
        seconds, cpu = time.monotonic() - began, time.process_time() - cpu
    print(json.dumps({"rate": count / seconds, "client_us": cpu / count * 1e6}))


async def work() -> None:
    async with app.open_async():
        await app.run_worker_async(concurrency=CONCURRENCY, listen_notify=True)


if __name__ == "__main__":
    import uvloop

    verb = {"setup": setup, "worker": work}.get(sys.argv[1])
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(verb() if verb else enqueue(int(sys.argv[2])))
