"""End the dead, heal the stuck, trim the old.

Rung 3: a run whose lease lapsed a grace ago has lost its worker. It fails and is never run again by
itself: it may have sent the e-mail already. Every worker sweeps, and `manage.py reap` does; each
orphan is ended once, because expiry is tested again in the write.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from django.db.models import OuterRef, Subquery
from django.db.models.functions import Coalesce, Now

from . import db, metrics, turns
from .agents import get_agent
from .conf import Config
from .exceptions import UnknownAgent
from .fence import Fence
from .finalize import end_runs, failure_so_far
from .journal import Standing
from .limits import Overruns, end_overdue
from .models import ACTIVE, AgentRun, RunEvent
from .suspended import expire_questions

logger = logging.getLogger(__name__)

REAP_BATCH = 100
"""Orphans looked at in one sweep."""
HEAL_BATCH = 1000
"""Conversations with waiting turns looked at in one sweep."""
TRIM_BATCH = 100
"""Journals deleted in one transaction."""
NO_ID = UUID(int=0)


@dataclass(slots=True)
class Swept:
    """What a sweep did."""

    reaped: int = 0
    limited: int = 0
    healed: int = 0
    trimmed: int = 0
    expired: int = 0

    def __str__(self) -> str:
        return (
            f"{self.reaped} orphans ended, {self.limited} runs past a limit ended, "
            f"{self.healed} conversations woken, {self.trimmed} journals trimmed, "
            f"{self.expired} questions expired"
        )

    def __bool__(self) -> bool:
        return any((self.reaped, self.limited, self.healed, self.trimmed, self.expired))


class Reaper:
    """Sweeps in small transactions; keeps the place where the last sweep left off, so that a large
    queue is covered bit by bit.
    """

    def __init__(
        self, *, grace: timedelta, retention: timedelta, overruns: Overruns | None = None
    ) -> None:
        self.grace = grace
        self.retention = retention
        self._overruns = overruns
        self._healed_to = NO_ID

    @classmethod
    def of(cls, config: Config) -> Reaper:
        """The reaper of these settings."""
        grace = timedelta(seconds=config.GRACE_SECONDS)
        # A worker fences off code that ignores its cancellation, and only then is it late.
        unheeded = grace + timedelta(seconds=config.STOP_GRACE_SECONDS)
        return cls(
            grace=grace,
            retention=timedelta(seconds=config.RETENTION_SECONDS),
            overruns=Overruns(longest=config.RUN_TIMEOUT_SECONDS, grace=unheeded),
        )

    def sweep(
        self,
        *,
        whole: bool = False,
        spared: Iterable[UUID] = (),
        enforced: Iterable[UUID] = (),
    ) -> Swept:
        """End orphans and runs past a limit, promote heads that lost their promotion, trim old
        journals, end runs that waited for an answer for too long.

        `whole` goes on until nothing is left to do; else each part does one batch. Runs that are
        `spared` are no orphans, and those that are `enforced` are held to their limits already.
        """
        swept = Swept(reaped=self._reap(spared), limited=end_overdue())
        if self._overruns is not None and (whole or self._overruns.is_due):
            swept.limited += self._overruns.end(spared=enforced)
        while True:
            healed, self._healed_to = turns.heal(self._healed_to, limit=HEAL_BATCH)
            swept.healed += healed
            if not whole or self._healed_to == NO_ID:
                break
        while trimmed := trim(self.retention):
            swept.trimmed += trimmed
            if not whole:
                break
        swept.expired = expire_questions()
        return swept

    def _reap(self, spared: Iterable[UUID]) -> int:
        """End every run that is expired now and not locked by somebody else."""
        reaped = 0
        tried = set(spared)
        while True:
            orphans = (
                AgentRun.objects.expired(self.grace)
                .exclude(pk__in=tried)
                .order_by("claim_expires_at")
            )
            batch = list(orphans.values_list("pk", "conversation_id", "claim_token")[:REAP_BATCH])
            for run_id, conversation_id, token in batch:
                reaped += reap(Fence(run_id, token), conversation_id, grace=self.grace)  # type: ignore[arg-type]  # running
            tried.update(run_id for run_id, _, _ in batch)
            if len(batch) < REAP_BATCH:
                return reaped


def reap(fence: Fence, conversation_id: UUID, *, grace: timedelta) -> bool:
    """End one run as `worker_lost` if its lease lapsed `grace` ago; whether this call did."""
    with db.atomic():
        run = turns.lock_run(AgentRun.objects.fenced(fence).expired(grace), conversation_id)
        if run is None:
            return False
        after = retry_after(run.agent, run.attempt)
        ending = failure_so_far(fence, conversation_id, "worker_lost", retry_after=after)
        ended = end_runs([ending], expired_for=grace)[run.pk]
    if ended.standing is not Standing.HELD:
        return False
    metrics.orphans.inc()
    logger.warning("reaped run %s of worker %s: its lease lapsed", run.pk, run.worker_id)
    return True


def retry_after(agent: str, attempt: int) -> timedelta | None:
    """How long after losing its worker a run of this agent is repeated; None for agents that are
    not declared safe to repeat.
    """
    try:
        policy = get_agent(agent).retry
    except UnknownAgent:
        return None
    delay = policy.delay(attempt) if policy else None
    return None if delay is None else timedelta(seconds=delay)


def trim(retention: timedelta) -> int:
    """Delete the journals, and null the inputs, of up to `TRIM_BATCH` runs that ended `retention`
    ago; how many.
    """
    with db.atomic():
        old = AgentRun.objects.exclude(status__in=ACTIVE).filter(
            finished_at__lt=Now() - retention, trimmed_at__isnull=True
        )
        ids = list(
            old.order_by("finished_at")
            .select_for_update(no_key=True, skip_locked=True, of=("self",))
            .values_list("pk", flat=True)[:TRIM_BATCH]
        )
        if ids:
            newest = RunEvent.objects.filter(run_id=OuterRef("pk")).order_by("-seq").values("seq")
            # A run that was ended past the verbs lacks `complete`: its viewers still get an end.
            end = Coalesce("last_seq", Subquery(newest[:1]) + 1)
            runs = AgentRun.objects.filter(pk__in=ids)
            runs.update(input=None, trimmed_at=Now(), last_seq=end)
            events = RunEvent.objects.filter(run_id__in=ids)
            events._raw_delete(events.db)  # nothing hangs on an event: no need to load them
    return len(ids)
