"""Prove a claim, or stand down.

Rung 4: every write of a worker names its run and the token of its claim, and counts only while the
run still runs under that token. The check locks the run's row: a condition that only reads lets an
ending slip in between the check and the write.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from uuid import UUID

from django.db.models.expressions import RawSQL

from . import db
from .exceptions import Superseded
from .models import AgentRun


@dataclass(frozen=True, slots=True)
class Fence:
    """A run and the token of the claim on it."""

    run_id: UUID
    token: UUID


def hold(fence: Fence) -> AgentRun:
    """Lock the run's row until the transaction ends, or raise `Superseded`."""
    run = AgentRun.objects.fenced(fence).select_for_update(no_key=True, of=("self",)).first()
    if run is None:
        raise Superseded(f"run {fence.run_id} is no longer held under this claim")
    return run


PROBED = "OFFSET 0"
"""Behind the SELECT of an EXISTS: looked up for each row. Without it, the planner may gather all
runs in a hash table first.
"""


@cache
def fenced_sql(*columns: str, expired_for: timedelta | None = None) -> str:
    """`SELECT columns` of the run that a row `asked(run_id, token)` proves a claim on, for use
    after LATERAL.

    With `expired_for`, only where the lease lapsed that long ago. A lateral subquery is evaluated
    once for each row of `asked`, by primary key, whatever the planner believes about the table.
    """
    asked = Fence(RawSQL("asked.run_id", ()), RawSQL("asked.token", ()))  # type: ignore[arg-type]
    runs = AgentRun.objects.fenced(asked)
    if expired_for is not None:
        runs = runs.expired(expired_for)
    return db.compiled(runs.values_list(*columns))


@cache
def suspended_sql(*columns: str) -> str:
    """As `fenced_sql`, of a run that nobody holds, since it waits or has just been answered: the
    caller has its row and its conversation's locked, and `asked` has any token.
    """
    run = AgentRun.objects.suspended().filter(pk=RawSQL("asked.run_id", ()))
    return db.compiled(run.values_list(*columns))
