"""Count what workers and streams do, for Prometheus.

Without `prometheus_client` (the extra `metrics`) every instrument is a stub: calls cost a no-op,
and nothing else changes. Names are documented in docs/operations.md.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from .claim import Claimed
    from .execution import Execution
    from .finalize import Ended, Ending
    from .journal import Row

try:
    import prometheus_client as _prometheus
except ImportError:  # the extra is not installed
    _prometheus = None  # type: ignore[assignment]

enabled = _prometheus is not None

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
ROWS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000)


class Nothing:
    """An instrument that measures nothing."""

    def labels(self, *values: str) -> Self:
        return self

    def inc(self, amount: float = 1) -> None:
        pass

    def dec(self, amount: float = 1) -> None:
        pass

    def observe(self, amount: float) -> None:
        pass


def _counter(name: str, text: str, labels: Sequence[str] = ()) -> Any:
    return _prometheus.Counter(name, text, labels) if enabled else Nothing()


def _gauge(name: str, text: str) -> Any:
    # Of several processes that share a directory (PROMETHEUS_MULTIPROC_DIR), the living are added.
    return _prometheus.Gauge(name, text, multiprocess_mode="livesum") if enabled else Nothing()


def _histogram(name: str, text: str, buckets: Sequence[float], labels: Sequence[str] = ()) -> Any:
    return _prometheus.Histogram(name, text, labels, buckets=buckets) if enabled else Nothing()


claims = _counter("agentruns_claims", "Runs claimed by this process", ["agent"])
endings = _counter("agentruns_endings", "Runs ended by this process", ["agent", "status", "code"])
questions = _counter("agentruns_questions", "Questions asked by runs of this process", ["agent"])
orphans = _counter("agentruns_orphans", "Lost runs ended by this process as a reaper")
claim_wait = _histogram(
    "agentruns_claim_wait_seconds",
    "From enqueue to claim, by the database's clock",
    SECONDS,
    ["agent"],
)
first_event = _histogram(
    "agentruns_first_event_seconds",
    "From enqueue to the agent's first stored event",
    SECONDS,
    ["agent"],
)
run_time = _histogram("agentruns_run_seconds", "From claim to end", SECONDS, ["agent"])
stop_time = _histogram(
    "agentruns_stop_seconds", "From the stop of a running run to its end", SECONDS
)
flush_rows = _histogram("agentruns_flush_rows", "Journal rows in one flush", ROWS)
flush_time = _histogram("agentruns_flush_seconds", "Duration of one flush", SECONDS)
viewers = _gauge("agentruns_viewers", "Open streams of this process")
reconnects = _counter("agentruns_hub_reconnects", "Times that the LISTEN connection was lost")
lost_signals = _counter(
    "agentruns_lost_signals", "Finds of a poll that no signal had told of", ["kind"]
)
beats_failed = _counter("agentruns_heartbeats_failed", "Heartbeats that the database did not take")


def claimed(run: Claimed) -> None:
    claims.labels(run.agent).inc()
    if run.answered_seq is not None:
        return
    claim_wait.labels(run.agent).observe((run.started_at - run.created_at).total_seconds())


def stored(execution: Execution, rows: Sequence[Row]) -> None:
    """These rows of the run are stored now."""
    if enabled and rows and rows[0].seq == 4:  # the first after those of enqueue and claim
        run = execution.claimed
        waited = (run.started_at - run.created_at).total_seconds()
        first_event.labels(run.agent).observe(waited + time.monotonic() - execution.started)


def ended(execution: Execution, ending: Ending, end: Ended) -> None:
    """This process ended the run."""
    agent, code = execution.agent.name, (ending.error or {}).get("code", "")
    endings.labels(agent, str(end.status), code).inc()
    run_time.labels(agent).observe(time.monotonic() - execution.started)
    if end.stopping_for is not None:
        stop_time.observe(end.stopping_for)


def asked(execution: Execution, rows: Sequence[Row]) -> None:
    """The run waits for an answer; these of its rows were stored with the question."""
    stored(execution, rows)
    questions.labels(execution.agent.name).inc()


@contextlib.contextmanager
def flush(rows: int) -> Iterator[None]:
    """Around one flush of so many rows; one that fails is not counted."""
    began = time.perf_counter()
    yield
    flush_time.observe(time.perf_counter() - began)
    flush_rows.observe(rows)
