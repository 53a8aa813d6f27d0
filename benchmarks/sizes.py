"""What a row of the journal takes on disk."""

from __future__ import annotations

from . import fill
from .results import Result, figure, run_alone
from .server import Server

RUNS = 10_000


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
        )
    ]


def _size(connection: object) -> int:
    return connection.execute(  # type: ignore[attr-defined]
        "SELECT pg_total_relation_size('agentruns_runevent')"
    ).fetchone()[0]


if __name__ == "__main__":
    run_alone("sizes", run)
