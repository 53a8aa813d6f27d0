"""Streaming runs: what the journal costs, and how long a delta takes to the table and to a viewer.
Beside Redis Streams, where a redis-server is found."""

from __future__ import annotations

import os
import pickle
import signal
import time
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from . import fill
from .measure import percentile
from .server import Server, wait_until

WARM_SECONDS = 4.0
SECONDS = 8.0
RATE = 50.0


@dataclass(frozen=True, slots=True)
class Streamed:
    """One window of streaming."""

    runs: int
    viewers: int
    deltas: float
    """Said, a second."""
    flushes: float
    """Statements of the journal, a second."""
    commits: float
    """Of the whole database, a second."""
    rows: float
    reads: float
    """Queries of the viewers' process, a second."""
    worker_cpu: float
    """Cores."""
    viewer_cpu: float
    pg_cpu: float
    wal_kb: float
    durable: list[float]
    """Milliseconds from each delta's moment until it was stored."""
    seen: list[float]
    """Until a viewer had it."""
    late: float
    """How late the source was at the worst, in milliseconds."""
    worker_mb: float

    @property
    def interval(self) -> float:
        """Milliseconds between two flushes."""
        return 1000 / self.flushes

    @property
    def cores(self) -> float:
        return self.worker_cpu + self.viewer_cpu + self.pg_cpu

    def shown(self) -> dict[str, float]:
        values = {
            name: round(getattr(self, name), 3)
            for name in (
                "runs",
                "viewers",
                "deltas",
                "flushes",
                "commits",
                "rows",
                "reads",
                "worker_cpu",
                "viewer_cpu",
                "pg_cpu",
                "wal_kb",
                "late",
                "interval",
                "worker_mb",
            )
        }
        for name in ("durable", "seen"):
            samples = getattr(self, name)
            for percent in (50, 99):
                if samples:
                    values[f"{name}_p{percent}"] = round(percentile(samples, percent), 1)
        return values


def streamed(
    server: Server,
    runs: int,
    *,
    viewers: int = 0,
    viewed: int | None = None,
    rate: float = RATE,
    seconds: float = SECONDS,
    **settings: str,
) -> Streamed:
    """Have `runs` runs stream, and `viewers` watch the first `viewed` of them."""
    import subprocess
    import sys

    from .server import ROOT

    with server.connect("agentruns") as connection:
        fill.clear(connection)
        fill.fill(connection, runs, agent="streamer")
        ids = [row[0].hex for row in connection.execute("SELECT id FROM agentruns_agentrun")]
        reports = {
            name: server.folder / f"report-{name}-{time.monotonic_ns()}"
            for name in ("worker", "viewers")
        }
        environment = {
            "BENCH_RATE": str(rate),
            "BENCH_REPORT": str(reports["worker"]),
            "AGENTRUNS_CONCURRENCY": str(runs),
            **settings,
        }
        watched = [ids[number % (viewed or runs)] for number in range(viewers)]
        viewer = (
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.stream", "viewers"],
                cwd=ROOT,
                env=server.environment(BENCH_REPORT=str(reports["viewers"]), **settings),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            if viewers
            else None
        )
        try:
            with server.running("benchmarks.stream", "worker", **environment) as worker:
                wait_until(lambda: _count(connection, "status = 'running'") == runs)
                if viewer:
                    assert viewer.stdin and viewer.stdout
                    viewer.stdin.write(" ".join(watched))
                    viewer.stdin.close()
                    viewer.stdout.readline()
                pids = [worker, *([viewer.pid] if viewer else [])]
                time.sleep(WARM_SECONDS)
                first = _mark(server, connection, pids)
                time.sleep(seconds)
                last = _mark(server, connection, pids)
                time.sleep(0.5)
            if viewer:
                viewer.send_signal(signal.SIGTERM)
                viewer.wait(30)
        finally:
            if viewer and viewer.poll() is None:
                viewer.kill()
                viewer.wait()
    worked = pickle.loads(reports["worker"].read_bytes())
    viewed_report = pickle.loads(reports["viewers"].read_bytes()) if viewers else None
    return _streamed(runs, viewers, first, last, worked, viewed_report)


def _count(connection: Any, condition: str) -> int:
    return connection.execute(
        f"SELECT count(*) FROM agentruns_agentrun WHERE {condition}"
    ).fetchone()[0]


def _mark(server: Server, connection: Any, pids: list[int]) -> dict[str, float]:
    for pid in pids:
        os.kill(pid, signal.SIGUSR1)
    connection.execute("SELECT pg_stat_force_next_flush()") if False else None
    commits, wal = connection.execute(
        "SELECT (SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()), "
        "pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::float8"
    ).fetchone()
    return {"at": time.monotonic(), "pg": server.cpu(), "commits": commits, "wal": wal}


def _streamed(
    runs: int,
    viewers: int,
    first: dict[str, float],
    last: dict[str, float],
    worked: Any,
    viewed: Any,
) -> Streamed:
    seconds = last["at"] - first["at"]
    (began, cpu_0, flushes_0), (ended, cpu_1, flushes_1) = worked["marks"][:2]
    stored = worked["stored"]
    durable = [
        moment
        for key, said in worked["said"].items()
        for moment in _latencies(said, stored[key], began, ended)
    ]
    seen: list[float] = []
    viewer_cpu = reads = 0.0
    if viewed:
        (at_0, used_0, reads_0), (at_1, used_1, reads_1) = viewed["marks"][:2]
        viewer_cpu, reads = (used_1 - used_0) / (at_1 - at_0), (reads_1 - reads_0) / (at_1 - at_0)
        for key, frames in _one_viewer_each(viewed["seen"]).items():
            seen += _latencies(worked["said"][key], frames, began, ended)
    return Streamed(
        runs=runs,
        viewers=viewers,
        deltas=sum(began <= due < ended for said in worked["said"].values() for due in said)
        / (ended - began),
        flushes=(flushes_1 - flushes_0) / (ended - began),
        commits=(last["commits"] - first["commits"]) / seconds,
        rows=sum(began <= at < ended for each in stored.values() for at, _ in each)
        / (ended - began),
        reads=reads,
        worker_cpu=(cpu_1 - cpu_0) / (ended - began),
        viewer_cpu=viewer_cpu,
        pg_cpu=(last["pg"] - first["pg"]) / seconds,
        wal_kb=(last["wal"] - first["wal"]) / seconds / 1000,
        durable=durable,
        seen=seen,
        late=worked["late"] * 1000,
        worker_mb=worked["rss"] / 1000,
    )


def _one_viewer_each(seen: list[tuple[str, float, int]]) -> dict[str, list[tuple[float, int]]]:
    """The frames of each run in order; several viewers of one run get theirs at once."""
    runs: dict[str, list[tuple[float, int]]] = {}
    for key, at, count in seen:
        runs.setdefault(key, []).append((at, count))
    return runs


def _latencies(
    said: list[float], arrived: list[tuple[float, int]], began: float, ended: float
) -> list[float]:
    """Milliseconds from each delta's moment, in the window, to its arrival."""
    ends = list(accumulate(count for _, count in arrived))
    found: list[float] = []
    place = 0
    for number, due in enumerate(said):
        while place < len(ends) and ends[place] <= number:
            place += 1
        if place == len(ends):
            break
        if began <= due < ended - 1:
            found.append((arrived[place][0] - due) * 1000)
    return found
