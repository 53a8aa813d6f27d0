"""Hold runs to their limits, where no worker does.

Rung 3. A run that stood ready for longer than it may is never claimed any more, and every sweep
ends what it finds of these.
"""

from __future__ import annotations

import logging
from uuid import UUID

from . import db, metrics, turns
from .finalize import fail_queued
from .models import AgentRun

logger = logging.getLogger(__name__)

BATCH = 100
"""Runs ended in one transaction."""


def end_overdue() -> int:
    """End every run that stood ready for longer than it may, as `queue_timeout`; how many."""
    ended = 0
    tried: set[UUID] = set()
    while True:
        overdue = AgentRun.objects.overdue().exclude(pk__in=tried)
        batch = list(overdue.values_list("pk", "conversation_id")[:BATCH])
        tried.update(run_id for run_id, _ in batch)
        if batch:
            ended += _fail(batch)
        if len(batch) < BATCH:
            return ended


def _fail(batch: list[tuple[UUID, UUID]]) -> int:
    with db.atomic():
        places = turns.lock_conversations((place for _, place in batch), skip_locked=True)
        overdue = AgentRun.objects.overdue().filter(
            pk__in=[run_id for run_id, _ in batch], conversation_id__in=places
        )
        # A claim may hold one: then it started in time.
        held = overdue.select_for_update(no_key=True, skip_locked=True, of=("self",))
        runs = list(held.only("pk", "agent", "conversation_id"))
        ended = fail_queued(runs, "queue_timeout")
        turns.promote(run.conversation_id for run in runs)
    for run in runs:
        metrics.endings.labels(run.agent, "failed", "queue_timeout").inc()
    if ended:
        logger.warning(
            "ended %s: ready for longer than their limit", ", ".join(f"run {pk}" for pk in ended)
        )
    return len(ended)
