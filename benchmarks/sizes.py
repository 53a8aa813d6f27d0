"""What a row of the journal takes on disk, and a running run in memory."""

from __future__ import annotations

import psutil

from . import fill
from .results import Result, figure, run_alone
from .server import Server, wait_until

RUNS = 10_000
HELD = 50, 1000
"""Running runs of the two workers whose memory is compared."""


def run(server: Server, *, rounds: int = 3, scale: float = 1.0) -> list[Result]:
    server.create_ours("sizes")
    with server.connect("sizes") as connection:
        before = _size(connection)
        fill.fill(connection, RUNS, status="completed")
        connection.execute(
            "INSERT INTO agentruns_runevent (run_id, seq, type, payload) "
            "SELECT id, number, 'content_delta', jsonb_build_object('stream', 'text', 'delta', "
            "repeat('tok ', 12)) FROM agentruns_agentrun, generate_series(3, 20) number"
        )
        rows = connection.execute("SELECT count(*) FROM agentruns_runevent").fetchone()[0]
        megabytes = (_size(connection) - before) / rows
    return [
        figure(
            "",
            "a million rows of the journal, 48 characters a delta",
            f"{megabytes:.0f} MB with their indexes",
        ),
        figure(
            "",
            "a running run that waits for its model",
            f"{_kilobytes_of_a_run(server):.0f} kB of the worker",
        ),
    ]


def _kilobytes_of_a_run(server: Server) -> float:
    few, many = (_megabytes_with(server, runs) for runs in HELD)
    return (many - few) / (HELD[1] - HELD[0]) * 1000


def _megabytes_with(server: Server, runs: int) -> float:
    """Resident memory of a worker that holds so many runs."""
    settings = {
        "DATABASE_URL": server.url("sizes"),
        "AGENTRUNS_CONCURRENCY": str(runs),
        "AGENTRUNS_DRAIN_SECONDS": "0",
    }
    with server.connect("sizes") as connection:

        def running() -> int:
            return connection.execute(  # type: ignore[index]
                "SELECT count(*) FROM agentruns_agentrun WHERE status = 'running'"
            ).fetchone()[0]

        fill.clear(connection)
        fill.fill(connection, runs, agent="idle")
        with server.running("django", "runworker", "--no-reap", **settings) as pid:
            wait_until(lambda: running() == runs)
            return psutil.Process(pid).memory_info().rss / 1e6


def _size(connection: object) -> int:
    return connection.execute(  # type: ignore[attr-defined]
        "SELECT pg_total_relation_size('agentruns_runevent')"
    ).fetchone()[0]


if __name__ == "__main__":
    run_alone("sizes", run)
