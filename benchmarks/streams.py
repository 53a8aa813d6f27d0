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
from .measure import median, percentile
from .peers import redis
from .results import Result, at_most, figure, run_alone
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
    rows: float
    reads: float
    """Queries of the viewers' process, a second."""
    worker_cpu: float
    """Cores, those of the agents that speak among them."""
    journal_cpu: float
    """Of the worker's thread that writes the journal."""
    viewer_cpu: float
    pg_cpu: float
    wal_kb: float
    durable: list[float]
    """Milliseconds from each delta until it was stored."""
    seen: list[float]
    """Until a viewer had it."""
    late: float
    """How late the source was at the worst, in milliseconds."""

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
                "rows",
                "reads",
                "worker_cpu",
                "journal_cpu",
                "viewer_cpu",
                "pg_cpu",
                "wal_kb",
                "late",
                "interval",
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
    [wal] = connection.execute(
        "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::float8"
    ).fetchone()
    return {"at": time.monotonic(), "pg": server.cpu(), "wal": wal}


def _streamed(
    runs: int,
    viewers: int,
    first: dict[str, float],
    last: dict[str, float],
    worked: Any,
    viewed: Any,
) -> Streamed:
    seconds = last["at"] - first["at"]
    (began, cpu_0, flushes_0, journal_0), (ended, cpu_1, flushes_1, journal_1) = worked["marks"][:2]
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
        for key, (times, counts) in viewed["seen"].items():
            said = worked["said"][key.partition("/")[0]]
            seen += _latencies(said, list(zip(times, counts, strict=True)), began, ended)
    return Streamed(
        runs=runs,
        viewers=viewers,
        deltas=sum(began <= due < ended for said in worked["said"].values() for due in said)
        / (ended - began),
        flushes=(flushes_1 - flushes_0) / (ended - began),
        rows=sum(began <= at < ended for each in stored.values() for at, _ in each)
        / (ended - began),
        reads=reads,
        worker_cpu=(cpu_1 - cpu_0) / (ended - began),
        journal_cpu=(journal_1 - journal_0) / (ended - began),
        viewer_cpu=viewer_cpu,
        pg_cpu=(last["pg"] - first["pg"]) / seconds,
        wal_kb=(last["wal"] - first["wal"]) / seconds / 1000,
        durable=durable,
        seen=seen,
        late=worked["late"] * 1000,
    )


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


SLOW_FLUSH = "commit_delay = 2000", "commit_siblings = 0"
"""Makes each WAL flush take about 2.5 ms, as on a cloud's volume."""
SLOW = "slow some", "slow many", "slow most"
"""The streams that are measured with it."""


def run(server: Server, *, rounds: int = 3, scale: float = 1.0) -> list[Result]:
    server.create_ours()
    some, many, most = (max(50, int(runs * scale)) for runs in (200, 500, 1000))
    seconds = SECONDS if rounds > 1 else SECONDS / 2
    found: dict[str, list[Streamed]] = {}
    for _ in range(rounds):
        for name, options in {
            "50": {"runs": 50, "viewers": 50},
            "some": {"runs": some, "viewers": some},
            "many": {"runs": many, "viewers": many},
            "most": {"runs": most},
            "few": {"runs": 50, "viewers": many, "viewed": 50},
        }.items():
            found.setdefault(name, []).append(streamed(server, seconds=seconds, **options))
            print(name, found[name][-1].shown(), flush=True)
        with server.connect("postgres") as connection:
            _set(connection, SLOW_FLUSH)
            for name, runs in zip(SLOW, (some, many, most), strict=True):
                slow = streamed(server, runs, viewers=runs, seconds=seconds)
                found.setdefault(name, []).append(slow)
                print(name, slow.shown(), flush=True)
            _set(connection, ())
        if redis.found():
            found.setdefault("redis", []).append(redis.streamed(server, many, seconds))
            print("redis", found["redis"][-1].shown(), flush=True)
    return _results(found)


def _set(connection: Any, settings: tuple[str, ...]) -> None:
    connection.execute("ALTER DATABASE agentruns RESET ALL")
    for setting in settings:
        connection.execute(f"ALTER DATABASE agentruns SET {setting}")


def _results(found: dict[str, list[Streamed]]) -> list[Result]:
    def over(name: str, what: str) -> float:
        """p99 beyond the time between two flushes, the best of the rounds: a floor that other
        work on the machine only raises."""
        return min(percentile(getattr(s, what), 99) - s.interval for s in found[name])

    def middle(name: str, value: Any) -> float:
        return median(value(s) for s in found[name])

    many, most = (found[name][0].runs for name in ("many", "most"))
    shown = {name: [s.shown() for s in rounds] for name, rounds in found.items()}
    flushes = middle("many", lambda s: s.flushes) / middle("50", lambda s: s.flushes)
    reads = middle("few", lambda s: s.reads) / middle("50", lambda s: s.reads)
    journal = middle("most", lambda s: s.journal_cpu + s.pg_cpu)
    results = [
        at_most("P8", f"flushes/s of a worker, {many} runs to 50", flushes, 1.2, 1.1, rounds=shown),
        at_most(
            "P9",
            f"emit to durable p99 beyond the interval, {many} runs",
            over("many", "durable"),
            100,
            20,
            unit=" ms",
        ),
        at_most(
            "P10",
            f"emit to viewer p99 beyond the interval, {many} runs and viewers",
            over("many", "seen"),
            100,
            30,
            unit=" ms",
        ),
        at_most("P11", f"queries/s of the viewers' process, {many} viewers to 50", reads, 1.2, 1.1),
        at_most(
            "P12",
            f"CPU of the journal of {most} streaming runs, its thread + PG",
            journal,
            0.6,
            0.25,
            unit=" cores",
        ),
        at_most(
            "P13",
            "notifying commits per run and second, 50 runs",
            middle("50", lambda s: s.flushes / s.runs),
            0.4,
            0.4,
            unit="",
        ),
    ]
    for name in SLOW:
        what = f"as P10 with a flush of 2.5 ms, {found[name][0].runs} runs"
        results.append(at_most("P14", what, over(name, "seen"), 100, 30, unit=" ms"))
    if "redis" in found:
        ratio = [
            (percentile(ours.seen, 99) / percentile(theirs.seen, 99), ours.cores / theirs.cores)
            for ours, theirs in zip(found["many"], found["redis"], strict=True)
        ]
        results += [
            at_most(
                "P15", "emit to viewer p99, to Redis Streams", median(r[0] for r in ratio), 1.5, 0.5
            ),
            at_most("P15", "CPU, to Redis Streams", median(r[1] for r in ratio), 1.0, 0.5),
        ]
    for name, rounds in found.items():
        s = rounds[len(rounds) // 2].shown()
        results.append(
            figure(
                "",
                f"streams, {name}",
                ", ".join(
                    f"{key} {s[key]:g}"
                    for key in (
                        "deltas",
                        "interval",
                        "worker_cpu",
                        "journal_cpu",
                        "viewer_cpu",
                        "pg_cpu",
                        "durable_p50",
                        "durable_p99",
                        "seen_p50",
                        "seen_p99",
                    )
                    if key in s
                ),
            )
        )
    return results


if __name__ == "__main__":
    run_alone("streams", run)
