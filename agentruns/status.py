"""How the queue stands now: for the command, the dashboard, probes and metrics.

A handful of statements over partial indexes: the cost is that of what is queued and running, never
that of what has ended. Times are the database's clock.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, Q

from . import db
from .conf import get_config
from .models import AgentRun, SeenWorker


@dataclass(frozen=True, slots=True)
class Seen:
    """A worker as its beats show it."""

    worker_id: str
    agents: list[str]
    """Of those that it claims; empty where only its runs are known."""
    slots: int | None
    busy: int
    draining: bool
    reaps: bool
    seen_seconds_ago: float
    live: bool

    @property
    def free(self) -> int:
        """Slots in which it could start something now."""
        return 0 if self.slots is None or self.draining or not self.live else self.slots - self.busy


@dataclass(frozen=True, slots=True)
class Status:
    """The queue in numbers. Durations are seconds."""

    queued: int
    """All that has not started: what may start, what waits its turn, what is delayed."""
    ready: int
    """May start now."""
    delayed: int
    """May start at a later time."""
    behind: int
    """Waits behind another turn of its conversation."""
    oldest_wait: float | None
    """How long the oldest of those that may start has waited; None where none does."""
    running: int
    stopping: int
    """Running, and asked to stop."""
    lost: int
    """Running, and past lease and grace: the next sweep ends it."""
    waiting: int
    """Asked a person, and not answered."""
    by_agent: dict[str, dict[str, int]]
    """`queued`, `running` and `waiting` of each agent that has any."""
    workers: list[Seen]

    @property
    def live_workers(self) -> list[Seen]:
        return [worker for worker in self.workers if worker.live]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def read_status() -> Status:
    """The queue as it stands."""
    moment = clock()
    grace = timedelta(seconds=get_config().GRACE_SECONDS)
    ready = Q(ready_at__lte=moment)
    queued = AgentRun.objects.queued().aggregate(
        all=Count("pk"),
        ready=Count("pk", filter=ready),
        delayed=Count("pk", filter=Q(ready_at__gt=moment)),
    )
    head = AgentRun.objects.marked().order_by("ready_at", "id")
    oldest = head.values_list("ready_at", flat=True).first() if queued["ready"] else None
    running = AgentRun.objects.running().aggregate(
        all=Count("pk"),
        stopping=Count("pk", filter=Q(cancel_requested=True)),
        lost=Count("pk", filter=Q(claim_expires_at__lt=moment - grace)),
    )
    by_agent = _by_agent()
    return Status(
        queued=queued["all"],
        ready=queued["ready"],
        delayed=queued["delayed"],
        behind=queued["all"] - queued["ready"] - queued["delayed"],
        oldest_wait=(moment - oldest).total_seconds() if oldest else None,
        running=running["all"],
        stopping=running["stopping"],
        lost=running["lost"],
        waiting=sum(counts["waiting"] for counts in by_agent.values()),
        by_agent=by_agent,
        workers=seen_workers(moment),
    )


def clock() -> datetime:
    """The database's clock."""
    with db.connection().cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        moment: datetime = cursor.fetchone()[0]
    return moment


def _by_agent() -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    # Two statements: those of one index each.
    for runs in (AgentRun.objects.queued(), AgentRun.objects.holding()):
        counted = runs.values_list("agent", "status").annotate(Count("pk")).order_by("agent")
        for agent, status, count in counted:
            counts = found.setdefault(agent, {"queued": 0, "running": 0, "waiting": 0})
            counts[status] = count
    return dict(sorted(found.items()))


def seen_workers(moment: datetime) -> list[Seen]:
    """Workers by their own rows; and those that have none, by the beats of their runs."""
    seen = [
        Seen(
            worker_id=row.worker_id,
            agents=row.agents,
            slots=row.slots,
            busy=row.busy,
            draining=row.draining,
            reaps=row.reaps,
            seen_seconds_ago=(moment - row.seen_at).total_seconds(),
            live=row.gone_at > moment,
        )
        for row in SeenWorker.objects.order_by("worker_id", "pk")
    ]
    known = {worker.worker_id for worker in seen}
    return seen + [worker for worker in _by_their_runs(moment) if worker.worker_id not in known]


def _by_their_runs(moment: datetime) -> list[Seen]:
    runs: dict[str, list[tuple[datetime, datetime]]] = {}
    rows = AgentRun.objects.running().values_list(
        "worker_id", "last_heartbeat_at", "claim_expires_at"
    )
    for worker_id, beat, expires in rows:
        if beat and expires:
            runs.setdefault(worker_id, []).append((beat, expires))
    return [
        Seen(
            worker_id=worker_id,
            agents=[],
            slots=None,
            busy=len(beats),
            draining=False,
            reaps=False,
            seen_seconds_ago=(moment - max(beat for beat, _ in beats)).total_seconds(),
            live=max(expires for _, expires in beats) > moment,
        )
        for worker_id, beats in sorted(runs.items())
    ]
