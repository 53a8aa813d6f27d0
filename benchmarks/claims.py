"""Pages that one claim touches, in the states that make queues slow. Exact: no clock is involved.

`tests/test_claim_plan.py` holds the same at a small size.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import django

from . import fill
from .measure import median
from .results import Result, at_most, figure, run_alone
from .server import Server

MANY = 100_000
FINISHED = 1_000_000
TURNS = 20
"""Of each finished conversation."""
BATCH = 20
EMPTY = "1 k claimable, no history"


def run(server: Server, *, rounds: int = 3, scale: float = 1.0) -> list[Result]:
    server.create_ours("claims")
    found = server.call("benchmarks.claims", "measure", scale, DATABASE_URL=server.url("claims"))
    return _results(found)


def _results(found: dict[str, dict[str, float]]) -> list[Result]:
    empty = found[EMPTY]
    results = []
    for state, pages in found.items():
        dead = state.startswith("dead")
        results.append(
            figure("P6", state, _shown(pages, empty), **pages)
            if state == EMPTY
            else at_most(
                "P7" if dead else "P6",
                f"pages of a claim, {state}",
                pages["1"] / empty["1"],
                20 if dead else 2,
                2 if dead else 1.3,
                shown=_shown(pages, empty),
                **pages,
            )
        )
    return results


def _shown(pages: dict[str, float], empty: dict[str, float]) -> str:
    ratio, batch = pages["1"] / empty["1"], pages[str(BATCH)] / empty[str(BATCH)]
    return (
        f"{ratio:.2f}× ({pages['1']:g}); {BATCH} at once {batch:.2f}× ({pages[str(BATCH)]:g}); "
        f"{pages['ms']:.2f} ms"
    )


def measure(scale: float) -> dict[str, dict[str, float]]:
    """The pages of a claim of one and of several, by state."""
    many, finished = int(MANY * scale), int(FINISHED * scale)
    found: dict[str, dict[str, float]] = {}
    connection = _connect()
    for state, prepared in states(connection, many=many, finished=finished):
        with prepared:
            found[state] = _claims()
        print(state, found[state], file=sys.stderr, flush=True)
    return found


def states(connection: Any, *, many: int, finished: int) -> Iterator[tuple[str, Any]]:
    """Each state's name, and a context that holds it. Rows stay from one to the next where they do
    no harm: the history does.
    """
    some = 1000

    @contextmanager
    def holding(*steps: Any) -> Iterator[None]:
        for step in steps:
            step()
        yield

    def claimable(count: int, first: int) -> Any:
        return lambda: fill.fill(connection, count, first=first)

    def blocked(conversations: int) -> Any:
        first = 20_000_000 + conversations * 10_000

        def block() -> None:
            fill.clear_unfinished(connection)
            fill.fill(connection, conversations, status="running", first=first)
            fill.block(connection, many, conversations=conversations, first=first)
            fill.fill(connection, some, first=first + 5_000_000)

        return block

    def history() -> None:
        fill.fill(
            connection,
            finished,
            conversations=max(1, finished // TURNS),
            status="completed",
            first=1_000_000,
            events=False,
        )

    yield EMPTY, holding(lambda: fill.clear(connection), claimable(some, 40_000_000))
    yield (
        "1 k claimable, deep history",
        holding(lambda: fill.clear(connection), history, claimable(some, 40_000_000)),
    )
    yield "all claimable", holding(claimable(many, 50_000_000))
    yield "behind many blocked of 1 conversation", holding(blocked(1))
    yield "behind many blocked of 1,000 conversations", holding(blocked(1000))
    yield "other agents' runs first", _foreign(connection, many, some)
    yield "dead entries under an open snapshot", _dead(connection, many, some)


@contextmanager
def _foreign(connection: Any, many: int, some: int) -> Iterator[None]:
    fill.clear(connection)
    fill.fill(connection, many, agent="idle", age=2.0, first=20_000_000)
    fill.fill(connection, some, first=40_000_000)
    yield


@contextmanager
def _dead(connection: Any, many: int, some: int) -> Iterator[None]:
    fill.clear(connection)
    fill.fill(connection, many, age=2.0, first=20_000_000)
    with _connect() as reader:
        reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT count(*) FROM agentruns_agentrun")
        connection.execute(
            "UPDATE agentruns_agentrun SET status = 'cancelled', finished_at = now()"
        )
        fill.fill(connection, some, first=40_000_000)
        yield
        reader.execute("ROLLBACK")


def _claims() -> dict[str, float]:
    """A worker's claims: its first one has no mark yet; the next ones are measured."""
    import time

    from agentruns.claim import claim, new_tokens

    from .plans import LEASE, buffers, claim_plan

    options = _marked()
    claim(["noop"], new_tokens(1), "bench:1:first", lease=LEASE, **options)
    pages = {
        str(count): median(buffers(claim_plan(count, **options)) for _ in range(3))
        for count in (1, BATCH)
    }
    times = []
    for _ in range(5):
        began = time.perf_counter()
        claim_plan(1, **options)
        times.append((time.perf_counter() - began) * 1e3)
    return {**pages, "ms": median(times)}


def _marked() -> dict[str, Any]:
    try:
        from agentruns.claim import Mark
    except ImportError:
        return {}
    return {"mark": Mark()}


def _connect() -> Any:
    import os

    import psycopg

    return psycopg.connect(os.environ["DATABASE_URL"], autocommit=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["measure"]:
        django.setup()
        print(json.dumps(measure(float(sys.argv[2]))))
    else:
        run_alone("claims", run)
