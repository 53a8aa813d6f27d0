"""The queue at a glance: what `agentruns status` says, the failures, and a day's chart."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import TruncHour
from django.utils import timezone

from ..ids import first_id
from ..models import AgentRun, RunStatus
from ..status import Status, clock, read_status
from ..text import span

DAY = timedelta(days=1)
HOURS = 25
"""Bars: a day, and the hour that has begun."""
WIDTH, HEIGHT, GAP = 28, 120, 4
LAYERS = ("completed", "cancelled", "failed", "running", "waiting", "queued")


@dataclass(frozen=True, slots=True)
class Block:
    """One coloured part of a bar."""

    status: str
    x: int
    y: float
    height: float
    title: str


@dataclass(frozen=True, slots=True)
class Chart:
    blocks: list[Block]
    labels: list[tuple[int, str]]
    most: int
    width: int = HOURS * WIDTH
    bar: int = WIDTH - GAP
    height: int = HEIGHT


def context() -> dict[str, Any]:
    """What the dashboard's template shows."""
    status, moment = read_status(), clock()
    return {
        "status": status,
        "oldest_wait": None if status.oldest_wait is None else span(status.oldest_wait),
        "agents": status.by_agent,
        "workers": [(worker, span(worker.seen_seconds_ago)) for worker in status.workers],
        "failures": failures(moment),
        "chart": chart(runs_by_hour(moment), moment),
        "layers": LAYERS,
        "troubles": troubles(status),
    }


def failures(moment: datetime) -> list[tuple[str, str, int]]:
    """(code, agent, count) of the runs that failed within a day, the most frequent first."""
    failed = AgentRun.objects.filter(status=RunStatus.FAILED, finished_at__gte=moment - DAY)
    counted = failed.annotate(code=KeyTextTransform("code", "error")).values_list("code", "agent")
    return list(counted.annotate(count=Count("pk")).order_by("-count", "code", "agent")[:50])


def runs_by_hour(moment: datetime) -> dict[tuple[datetime, str], int]:
    """How many runs were enqueued in each hour of the last day, by their status now."""
    recent = AgentRun.objects.filter(pk__gte=first_id(moment - DAY))
    counted = recent.annotate(hour=TruncHour("created_at")).values_list("hour", "status")
    rows = counted.annotate(count=Count("pk")).order_by()
    return {(hour, status): count for hour, status, count in rows}


def chart(counts: dict[tuple[datetime, str], int], moment: datetime) -> Chart:
    """Stacked bars, one an hour, the newest at the right."""
    hours = sorted({hour for hour, _ in counts})
    this = max([*hours, _hour(moment)]) if hours else _hour(moment)
    places = {this - timedelta(hours=HOURS - 1 - place): place for place in range(HOURS)}
    totals = {hour: sum(counts.get((hour, layer), 0) for layer in LAYERS) for hour in places}
    most = max(totals.values()) or 1
    blocks = []
    for hour, place in places.items():
        top = float(HEIGHT)
        for layer in LAYERS:
            if count := counts.get((hour, layer), 0):
                height = HEIGHT * count / most
                top -= height
                title = f"{hour:%H:%M}: {count} {layer}"
                blocks.append(Block(layer, place * WIDTH, round(top, 1), round(height, 1), title))
    labels = [(place * WIDTH, f"{hour:%H}") for hour, place in places.items() if place % 3 == 0]
    return Chart(blocks, labels, most)


def _hour(moment: datetime) -> datetime:
    local = timezone.localtime(moment) if timezone.is_aware(moment) else moment
    return local.replace(minute=0, second=0, microsecond=0)


def troubles(status: Status) -> list[str]:
    """What needs somebody, a sentence each."""
    found = []
    if not status.live_workers:
        found.append("No worker is alive.")
    if status.lost:
        found.append(f"{status.lost} lost runs wait for a sweep.")
    for agent, counts in status.by_agent.items():
        live = status.live_workers
        if counts["queued"] and live and not any(agent in worker.agents for worker in live):
            found.append(f"No live worker knows agent {agent!r}: {counts['queued']} runs wait.")
    return found
