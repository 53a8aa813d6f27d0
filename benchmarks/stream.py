"""A worker whose agents stream, and the viewers of what they say: `python -m benchmarks.stream
worker|viewers`.

All runs of a worker are driven by one ticker, so that the machine's clock measures the journal and
not 25,000 timers: at each tick, each run that is due says four characters. When the worker is told
to end, it writes what it saw to `BENCH_REPORT`.
"""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import random
import resource
import signal
import sys
import threading
import time
from functools import cache
from typing import Any

TICK_SECONDS = 0.005
MAX_LATE_SECONDS = 1.0
"""What a source is behind by more than this is left out."""
DELTA = "tok "
WRAPPING = len('{"stream":"text","delta":""}')


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Source:
    """Has every run that takes part say `rate` deltas a second; `rate` 0 only holds them."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.said: dict[str, list[float]] = {}
        """When each delta of each run was said."""
        self.stored: dict[str, list[tuple[float, int]]] = {}
        """For each flush of each run, when it was stored and how many deltas it brought."""
        self.late = 0.0
        self.began: float | None = None
        self._runs: list[list[Any]] = []
        self._ticker: asyncio.Task[None] | None = None

    async def take_part(self, run: Any) -> None:
        due = time.monotonic() + random.uniform(0.2, 1.2)
        key = run.id.hex
        self.said[key], self.stored[key] = [], []
        self._runs.append([due, run, self.said[key]])
        if self._ticker is None and self.rate:
            self._ticker = asyncio.create_task(self._tick())
        await asyncio.Event().wait()

    async def _tick(self) -> None:
        period = 1 / self.rate
        while True:
            now = time.monotonic()
            for place in self._runs:
                due, run, said = place
                if due <= now:
                    self.late = max(self.late, now - due) if self.began else 0.0
                    due = max(due, now - MAX_LATE_SECONDS)
                while due <= now:  # all that a late tick owes: the rate stays what was asked for
                    said.append(time.monotonic())
                    await run.text(DELTA)
                    due += period
                place[0] = due
            await asyncio.sleep(max(0.0, TICK_SECONDS - (time.monotonic() - now)))

    def note(self, journal: Any, rows: Any) -> None:
        """Rows of a run are stored."""
        now = time.monotonic()
        for row in rows:
            if row.type == "content_delta":
                count = (len(row.payload) - WRAPPING) // len(DELTA)
                self.stored[journal.run_id.hex].append((now, count))


@cache
def source() -> Source:
    return Source(float(os.environ["BENCH_RATE"]))


def work() -> None:
    """A worker, with its figures from one second after `BENCH_WARM` until it is told to end."""
    import django

    django.setup()
    from agentruns.conf import get_config
    from agentruns.journal import RunJournal
    from agentruns.worker import Worker

    stored = RunJournal.stored

    def noting(journal: Any, rows: Any) -> None:
        stored(journal, rows)
        source().note(journal, rows)

    RunJournal.stored = noting  # type: ignore[method-assign]
    worker = Worker(get_config(), agents=["streamer"], reaps=False)
    marks: list[tuple[float, float, int, float]] = []

    def mark(*_: object) -> None:
        thread = worker.writer._thread.ident
        assert thread is not None
        journal = time.clock_gettime(time.pthread_getcpuclockid(thread))
        marks.append((time.monotonic(), cpu(), worker.writer.flushes, journal))
        source().began = marks[0][0]

    signal.signal(signal.SIGUSR1, mark)

    def end(*_: object) -> None:
        report = {
            "marks": marks,
            "said": source().said,
            "stored": source().stored,
            "late": source().late,
        }
        with open(os.environ["BENCH_REPORT"] + ".new", "wb") as file:
            pickle.dump(report, file)
        os.rename(os.environ["BENCH_REPORT"] + ".new", os.environ["BENCH_REPORT"])
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    gc.freeze()  # as `runworker` does
    worker.run()


async def view(run_ids: list[str]) -> None:
    """One viewer for each id, all in this process, by the tail that the consumers use."""
    from uuid import UUID

    from agentruns.tail import get_reader, tail

    seen: dict[str, tuple[list[float], list[int]]] = {}
    marks: list[tuple[float, float, int]] = []
    prefix = '"delta": "'

    async def watch(number: int, run_id: str) -> None:
        # Plain numbers in two lists: a tuple for each would be the garbage collector's work.
        times, counts = seen[f"{run_id}/{number}"] = [], []
        async for frames in tail(UUID(hex=run_id), 3):
            now = time.monotonic()
            if isinstance(frames, str):
                continue
            for frame in frames:
                if frame.type == "content_delta":
                    at = frame.json.index(prefix) + len(prefix)
                    size = frame.json.index('"', at) - at
                    times.append(now)
                    counts.append(size // len(DELTA))

    def mark() -> None:
        marks.append((time.monotonic(), cpu(), get_reader().reads))

    done = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, mark)
    loop.add_signal_handler(signal.SIGTERM, done.set)
    tasks = [asyncio.create_task(watch(*place)) for place in enumerate(run_ids)]
    print("ready", threading.active_count(), flush=True)
    await done.wait()
    report = {
        "marks": marks,
        "seen": seen,
    }
    with open(os.environ["BENCH_REPORT"] + ".new", "wb") as file:
        pickle.dump(report, file)
    os.rename(os.environ["BENCH_REPORT"] + ".new", os.environ["BENCH_REPORT"])
    for task in tasks:
        task.cancel()
    os._exit(0)


if __name__ == "__main__":
    if sys.argv[1] == "worker":
        # The registry imports this file by its other name; both are to be one.
        from benchmarks import stream

        stream.work()
    else:
        import django
        import uvloop

        django.setup()
        gc.freeze()  # as `project.asgi` does
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(view(sys.stdin.read().split()))
