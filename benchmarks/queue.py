"""The whole life of a run that does nothing, and enqueue, beside procrastinate's no-op."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

from . import fill
from .measure import cpu_of, median, read_counter
from .peers import procrastinate_rows as peer
from .results import Result, at_least, at_most, figure, run_alone
from .server import Server, wait_until

RUNS = 12_000
JOBS = 3_000
ENQUEUED = 2_000
SLOTS = 30


@dataclass(frozen=True, slots=True)
class Rate:
    """Jobs a second, and CPU microseconds a job: of the client's processes and of PostgreSQL."""

    rate: float
    client_us: float
    pg_us: float

    @property
    def cpu_us(self) -> float:
        return self.client_us + self.pg_us


def worked(server: Server, count: int, *command: object) -> Rate:
    """Have a worker empty the queue of `count`; taken from 10 % to 95 %, so without its start."""
    counter = server.folder / f"counter-{time.monotonic_ns()}"
    with server.running(*map(str, command), BENCH_COUNTER=str(counter)) as pid:

        def at(share: float) -> tuple[int, float, float, float]:
            wait_until(lambda: read_counter(counter) >= count * share)
            return read_counter(counter), time.monotonic(), cpu_of(pid), server.cpu()

        first, last, _ = at(0.10), at(0.95), at(1.0)
    jobs = last[0] - first[0]
    return Rate(
        jobs / (last[1] - first[1]),
        (last[2] - first[2]) / jobs * 1e6,
        (last[3] - first[3]) / jobs * 1e6,
    )


def lives(server: Server, count: int) -> Rate:
    with server.connect("agentruns") as connection:
        fill.clear(connection)
        fill.fill(connection, count)
        rate = worked(server, count, "django", "runworker", "--concurrency", SLOTS, "--no-reap")
        left = connection.execute(
            "SELECT count(*) FROM agentruns_agentrun WHERE status <> 'completed'"
        ).fetchone()
    assert left == (0,), f"{left} runs did not end"
    return rate


def noops(server: Server, count: int) -> Rate:
    with server.connect("procrastinate") as connection:
        peer.clear(connection)
        peer.fill(connection, count)
    return worked(server, count, "benchmarks.peers.procrastinate", "worker")


def enqueued(server: Server, count: int, *command: object, **environment: str) -> Rate:
    for database in ("agentruns", "procrastinate"):
        with server.connect(database) as connection:
            connection.execute("VACUUM (ANALYZE)")  # what was before is not to be cleaned up now
    cpu = server.cpu()
    answer = server.call(*map(str, command), count, **environment)
    return Rate(answer["rate"], answer["client_us"], (server.cpu() - cpu) / count * 1e6)


def run(server: Server, *, rounds: int = 3, scale: float = 1.0) -> list[Result]:
    server.create_ours()
    server.create("procrastinate")
    server.call("benchmarks.peers.procrastinate", "setup")
    measured: dict[str, list[Rate]] = {}
    for _ in range(rounds):
        for name, rate in _round(server, scale):
            measured.setdefault(name, []).append(rate)
            print(
                f"{name:22} {rate.rate:8.0f}/s  client {rate.client_us:6.0f} us  "
                f"PG {rate.pg_us:6.0f} us",
                flush=True,
            )
    return _results(measured)


def _round(server: Server, scale: float) -> Any:
    jobs, runs, turns = (int(n * scale) for n in (JOBS, RUNS, ENQUEUED))
    yield "procrastinate no-op", noops(server, jobs)
    yield "run", lives(server, runs)
    yield (
        "procrastinate defer",
        enqueued(server, turns, "benchmarks.peers.procrastinate", "enqueue"),
    )
    for kind in ("new", "known"):
        command = ("benchmarks.enqueue", kind)
        yield f"enqueue, {kind}", enqueued(server, turns, *command)
        planned = enqueued(server, turns, *command, BENCH_PLANNED="1")
        yield f"enqueue, {kind}, planned each time", planned


def _results(measured: dict[str, list[Rate]]) -> list[Result]:
    def ratio(ours: str, theirs: str, attribute: str) -> float:
        pairs = zip(measured[ours], measured[theirs], strict=True)
        return median(getattr(a, attribute) / getattr(b, attribute) for a, b in pairs)

    def typical(name: str) -> str:
        rates = measured[name]
        rate, client, pg = (
            median(getattr(r, name) for r in rates) for name in ("rate", "client_us", "pg_us")
        )
        return f"{rate:.0f}/s, client {client:.0f} + PG {pg:.0f} µs"

    rounds = {name: [asdict(rate) for rate in rates] for name, rates in measured.items()}
    life, defer = ("run", "procrastinate no-op"), "procrastinate defer"
    results = [
        at_least(
            "P1",
            "rate of whole no-op lives, to procrastinate's no-op",
            ratio(*life, "rate"),
            1.0,
            5.0,
            rounds=rounds,
        ),
        at_most(
            "P2",
            "CPU of a life (worker + PG), to procrastinate's",
            ratio(*life, "cpu_us"),
            0.8,
            0.2,
        ),
    ]
    for kind in ("enqueue, new", "enqueue, known"):
        results += [
            at_least(
                "P3",
                f"{kind} conversation: rate, to procrastinate's defer",
                ratio(kind, defer, "rate"),
                0.7,
                1.2,
            ),
            at_most(
                "P3", f"{kind} conversation: client CPU", ratio(kind, defer, "client_us"), 1.2, 0.5
            ),
        ]
    return results + [figure("", name, typical(name)) for name in measured]


if __name__ == "__main__":
    run_alone("queue", run)
