"""Hand the metrics out: those of this process, and how the queue stands."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from . import db
from .status import Status, read_status

logger = logging.getLogger(__name__)

LIMIT_SECONDS = 5.0


class QueueCollector:
    """The queue's gauges, read when they are asked for. Equal in every process: take `max()`."""

    def collect(self) -> Iterable[Any]:
        from prometheus_client.core import GaugeMetricFamily

        up = GaugeMetricFamily("agentruns_database_up", "Whether the queue could be read")
        try:
            status = _read()
        except db.DATABASE_TROUBLE as error:
            logger.warning("metrics: the queue cannot be read (%s)", error)
            up.add_metric([], 0)
            return [up]
        up.add_metric([], 1)
        return [up, *_gauges(status, GaugeMetricFamily)]


def _read() -> Status:
    """In a thread, and so on a connection, of its own: with a limit, whatever the caller's has."""
    with ThreadPoolExecutor(1, thread_name_prefix="agentruns-metrics") as executor:
        return executor.submit(_read_within_limits).result()


def _read_within_limits() -> Status:
    lane = db.Lane("metrics", limit=LIMIT_SECONDS)
    lane.open()
    try:
        with lane.statement():
            return read_status()
    finally:
        lane.close()


def _gauges(status: Status, family: Any) -> Iterable[Any]:
    simple = {
        "agentruns_ready": ("Runs that may start now", status.ready),
        "agentruns_behind": ("Runs that wait behind a turn of their conversation", status.behind),
        "agentruns_delayed": ("Runs that may start later", status.delayed),
        "agentruns_oldest_wait_seconds": (
            "Longest wait of a run that may start",
            status.oldest_wait or 0.0,
        ),
        "agentruns_running": ("Runs that run", status.running),
        "agentruns_stopping": ("Runs that run and were asked to stop", status.stopping),
        "agentruns_lost": ("Runs past lease and grace that no sweep has ended", status.lost),
        "agentruns_waiting": ("Runs that wait for a person's answer", status.waiting),
        "agentruns_workers": ("Workers that are alive", len(status.live_workers)),
        "agentruns_slots": (
            "Slots of the workers that are alive",
            sum(worker.slots or 0 for worker in status.live_workers),
        ),
    }
    for name, (text, value) in simple.items():
        yield family(name, text, value=value)
    for state in ("queued", "running", "waiting"):
        gauge = family(f"agentruns_agent_{state}", f"Runs {state}, by agent", labels=["agent"])
        for agent, counts in status.by_agent.items():
            gauge.add_metric([agent], counts[state])
        yield gauge


def expose() -> tuple[str, bytes]:
    """Content type and body of a scrape. Needs `prometheus_client`."""
    import prometheus_client as prometheus

    own: Any = prometheus.REGISTRY
    if os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
        from prometheus_client import multiprocess

        own = prometheus.CollectorRegistry()
        multiprocess.MultiProcessCollector(own)  # type: ignore[no-untyped-call]
    queue = prometheus.CollectorRegistry()
    queue.register(QueueCollector())
    body = prometheus.generate_latest(own) + prometheus.generate_latest(queue)
    return prometheus.CONTENT_TYPE_LATEST, body
