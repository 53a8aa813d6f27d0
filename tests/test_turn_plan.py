"""What it costs to hand a turn on and to cancel waiting ones does not grow with what else stands in
the tables, whatever the planner believes of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest

from agentruns import turns
from agentruns.finalize import cancel_queued
from agentruns.models import AgentRun, RunStatus
from benchmarks import fill
from benchmarks.plans import buffers, explained

from .factories import UserFactory

pytestmark = pytest.mark.django_db(transaction=True)

MANY = 5_000
FEW = 5
LATE = 40_000_000

State = Callable[[psycopg.Connection[Any]], None]


@pytest.fixture
def other(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database_url, autocommit=True) as connected:
        UserFactory(id=1)
        connected.execute("ALTER TABLE agentruns_agentrun SET (autovacuum_enabled = off)")
        yield connected
        connected.execute("ALTER TABLE agentruns_agentrun RESET (autovacuum_enabled)")


def of_an_empty_table(other: psycopg.Connection[Any]) -> None:
    other.execute(f"ANALYZE {fill.TABLES}")


def of_a_quiet_moment(other: psycopg.Connection[Any]) -> None:
    """Much history; nothing waits, nothing runs."""
    fill.fill(other, MANY, status="completed", first=10_000_000)


def of_a_busy_moment(other: psycopg.Connection[Any]) -> None:
    """Everything there is waits."""
    fill.fill(other, FEW)
    other.execute(f"ANALYZE {fill.TABLES}")


def promoted() -> dict[str, Any]:
    """Of conversations whose turn has just ended."""
    idle = AgentRun.objects.filter(turn=2).order_by("id").values_list("conversation_id", flat=True)
    plan = explained(lambda: turns.promote(list(idle[:FEW])), "WITH head")
    assert plan is not None
    return plan


def cancelled() -> dict[str, Any]:
    waiting = list(AgentRun.objects.filter(status=RunStatus.QUEUED).order_by("id")[:FEW])
    plan = explained(lambda: cancel_queued(waiting), "WITH held")
    assert plan is not None
    return plan


def waiting(other: psycopg.Connection[Any]) -> None:
    """A few conversations with a turn that waits, their first one ended, beside many runs."""
    fill.fill(other, FEW, status="completed", first=LATE, analyzed=False)
    fill.block(other, FEW, conversations=FEW, first=LATE)
    fill.fill(other, MANY, status="running", first=20_000_000, analyzed=False)
    fill.fill(other, MANY, first=30_000_000, analyzed=False)


def looked_for() -> dict[str, Any]:
    """Conversations that stand still, among the first few."""
    plan = explained(lambda: turns.heal(UUID(int=0), limit=FEW), "WITH RECURSIVE")
    assert plan is not None
    return plan


@pytest.mark.parametrize("verb", [promoted, cancelled, looked_for])
@pytest.mark.parametrize("believed", [of_an_empty_table, of_a_quiet_moment, of_a_busy_moment])
def test_a_turn_costs_the_same_whatever_is_believed(
    other: psycopg.Connection[Any], believed: State, verb: Callable[[], dict[str, Any]]
) -> None:
    believed(other)
    waiting(other)
    misled = buffers(verb())
    other.execute(f"VACUUM (ANALYZE) {fill.TABLES}")

    assert misled <= 1.3 * buffers(verb())
