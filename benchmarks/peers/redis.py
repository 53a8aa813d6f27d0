"""Token streams by Redis Streams: XADD of all deltas of a tick in one pipeline, and for each viewer
a connection of its own with XREAD BLOCK.

Needs redis-server (`BENCH_REDIS_SERVER` names another place than the PATH's). `python -m
benchmarks.peers.redis writer|viewers PORT RUNS SECONDS REPORT`.
"""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import random
import resource
import shutil
import socket
import subprocess
import sys
import time
from typing import Any

from benchmarks.measure import cpu_of
from benchmarks.stream import DELTA, MAX_LATE_SECONDS, TICK_SECONDS

RATE = 50
WARM_SECONDS = 3.0


def found() -> str | None:
    return os.environ.get("BENCH_REDIS_SERVER") or shutil.which("redis-server")


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def streamed(server: Any, runs: int, seconds: float) -> Any:
    """The same figures as of our own streams; without persistence, so nothing is durable."""
    from benchmarks.server import ROOT
    from benchmarks.streams import Streamed

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    executable = found()
    assert executable
    redis = subprocess.Popen(
        [
            executable,
            "--port",
            str(port),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
            "--maxclients",
            "5000",
        ],
        stdout=subprocess.DEVNULL,
    )
    try:
        time.sleep(0.5)
        reports = {who: str(server.folder / f"redis-{who}-{port}") for who in ("viewers", "writer")}
        processes = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "benchmarks.peers.redis",
                    who,
                    str(port),
                    str(runs),
                    str(seconds),
                    report,
                ],
                cwd=ROOT,
            )
            for who, report in reports.items()
        ]
        time.sleep(WARM_SECONDS + 1)
        began, cpu = time.monotonic(), cpu_of(redis.pid)
        time.sleep(seconds / 2)
        redis_cpu = (cpu_of(redis.pid) - cpu) / (time.monotonic() - began)
        for process in processes:
            process.wait(seconds + 60)
    finally:
        redis.terminate()
        redis.wait(10)
    wrote, viewed = (pickle.load(open(reports[who], "rb")) for who in ("writer", "viewers"))
    return Streamed(
        runs=runs,
        viewers=runs,
        deltas=wrote["deltas"],
        flushes=1 / TICK_SECONDS,
        rows=wrote["deltas"],
        reads=viewed["reads"],
        worker_cpu=wrote["cpu"],
        journal_cpu=0,
        viewer_cpu=viewed["cpu"],
        pg_cpu=redis_cpu,
        wal_kb=0,
        durable=[],
        seen=viewed["seen"],
        late=wrote["late"] * 1000,
    )


async def write(port: int, runs: int, seconds: float) -> dict[str, float]:
    import redis.asyncio

    client = redis.asyncio.Redis(port=port)
    began = time.monotonic()
    due = [began + random.uniform(0.2, 1.2) for _ in range(runs)]
    counted = late = cpu = since = 0.0
    while (now := time.monotonic()) < began + WARM_SECONDS + seconds:
        pipeline = client.pipeline(transaction=False)
        if not since and now > began + WARM_SECONDS:
            since, cpu, counted = now, _cpu(), 0
        some = False
        for run in range(runs):
            if due[run] <= now:
                late = max(late, now - due[run]) if since else 0.0
                due[run] = max(due[run], now - MAX_LATE_SECONDS)
            while due[run] <= now:  # as our own source does: see `benchmarks.stream`
                pipeline.xadd(f"run{run}", {"at": repr(time.monotonic()), "delta": DELTA})
                due[run] += 1 / RATE
                counted += 1
                some = True
        if some:
            await pipeline.execute()
        await asyncio.sleep(max(0.0, TICK_SECONDS - (time.monotonic() - now)))
    took = time.monotonic() - since
    return {"deltas": counted / took, "cpu": (_cpu() - cpu) / took, "late": late}


async def view(port: int, runs: int, seconds: float) -> dict[str, Any]:
    import redis.asyncio

    seen: list[float] = []
    reads = 0
    since = time.monotonic() + WARM_SECONDS

    async def watch(run: int) -> None:
        nonlocal reads
        client = redis.asyncio.Redis(port=port, single_connection_client=True)
        last: Any = "0"
        while True:
            answer = await client.xread({f"run{run}": last}, block=5000, count=500)
            now = time.monotonic()
            reads += 1
            for _, entries in answer or ():
                for entry, fields in entries:
                    last = entry
                    at = float(fields[b"at"])
                    if at > since:
                        seen.append((now - at) * 1000)

    tasks = [asyncio.create_task(watch(run)) for run in range(runs)]
    await asyncio.sleep(WARM_SECONDS)
    cpu, begun, reads = _cpu(), time.monotonic(), 0
    await asyncio.sleep(seconds - 0.5)
    took = time.monotonic() - begun
    return {"seen": seen, "reads": reads / took, "cpu": (_cpu() - cpu) / took, "tasks": len(tasks)}


async def report(who: str, port: int, runs: int, seconds: float, path: str) -> None:
    verb = write if who == "writer" else view
    outcome = await verb(port, runs, seconds)
    with open(path, "wb") as file:
        pickle.dump(outcome, file)
    os._exit(0)  # a read that is cancelled does not come back


if __name__ == "__main__":
    import uvloop

    who, port, runs, seconds, path = sys.argv[1:]
    gc.freeze()  # as in our own processes
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(report(who, int(port), int(runs), float(seconds), path))
