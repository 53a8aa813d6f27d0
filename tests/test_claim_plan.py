"""What a claim touches does not grow with what it does not take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import connection
from django.db.models.functions import Now

from agentruns.claim import Mark, claim, new_tokens
from agentruns.models import AgentRun
from benchmarks import fill
from benchmarks.plans import LEASE, buffers, claim_plan

from .factories import UserFactory

pytestmark = pytest.mark.django_db(transaction=True)

MANY = 10_000
SOME = 100
LATE = 40_000_000


@pytest.fixture
def other(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database_url, autocommit=True) as connected:
        UserFactory(id=1)
        yield connected


def pages(mark: Mark) -> int:
    return buffers(claim_plan(1, mark=mark))


def claimed_once() -> Mark:
    """A worker's mark after its first claim."""
    mark = Mark()
    assert len(claim(["noop"], new_tokens(1), "bench:1:first", lease=LEASE, mark=mark)) == 1
    return mark


def empty(other: psycopg.Connection[Any]) -> int:
    fill.fill(other, SOME, first=LATE)
    touched = pages(claimed_once())
    fill.clear(other)
    return touched


@contextmanager
def open_snapshot(database_url: str) -> Iterator[None]:
    with psycopg.connect(database_url) as reader:
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT count(*) FROM agentruns_agentrun")
        yield


def test_finished_runs_cost_a_claim_nothing(other: psycopg.Connection[Any]) -> None:
    usual = empty(other)
    fill.fill(other, MANY, status="completed")
    fill.fill(other, SOME, first=LATE)

    assert pages(claimed_once()) <= 1.3 * usual


def test_claimable_runs_cost_a_claim_nothing(other: psycopg.Connection[Any]) -> None:
    usual = empty(other)
    fill.fill(other, MANY)

    assert pages(claimed_once()) <= 1.3 * usual


@pytest.mark.parametrize("conversations", [1, 100])
def test_waiting_turns_cost_a_claim_nothing(
    other: psycopg.Connection[Any], conversations: int
) -> None:
    usual = empty(other)
    fill.fill(other, conversations, status="running")
    fill.block(other, MANY, conversations=conversations, first=0)
    fill.fill(other, SOME, first=LATE)

    assert pages(claimed_once()) <= 1.3 * usual


def test_other_agents_runs_cost_a_claim_nothing(other: psycopg.Connection[Any]) -> None:
    usual = empty(other)
    fill.fill(other, MANY, agent="idle", age=2.0)
    fill.fill(other, SOME, first=LATE)

    assert pages(claimed_once()) <= 1.3 * usual


def test_delayed_runs_cost_a_claim_nothing(other: psycopg.Connection[Any]) -> None:
    usual = empty(other)
    fill.fill(other, MANY, age=-3600.0)
    fill.fill(other, SOME, first=LATE)

    assert pages(claimed_once()) <= 1.3 * usual


def test_a_claim_that_leaves_nothing_says_when_the_next_run_may_start(
    other: psycopg.Connection[Any],
) -> None:
    fill.fill(other, 2)
    mark = Mark()

    def due_after(wanted: int, agent: str = "noop") -> float | None:
        claim([agent], new_tokens(wanted), "host:1:test", lease=LEASE, mark=mark)
        return mark.due_in

    AgentRun.objects.filter(pk=AgentRun.objects.first().pk).update(
        ready_at=Now() + timedelta(hours=1)
    )
    assert due_after(1) is None  # there may be more to take
    assert 3590 < (due_after(1) or 0) <= 3600
    assert due_after(1, "another") is None


def test_dead_entries_cost_a_claim_nothing(
    other: psycopg.Connection[Any], database_url: str
) -> None:
    usual = empty(other)
    fill.fill(other, MANY, age=2.0)
    with open_snapshot(database_url):
        AgentRun.objects.update(status="cancelled", finished_at="2026-01-01T00:00Z")
        fill.fill(other, SOME, first=LATE)

        from_the_beginning = pages(Mark())
        assert from_the_beginning > 2 * usual, "the entries are gone: nothing is shown"
        assert pages(claimed_once()) <= 2 * usual


def test_a_claim_is_planned_alike_with_statistics_of_an_empty_table(
    other: psycopg.Connection[Any],
) -> None:
    usual = empty(other)
    other.execute(f"ANALYZE {fill.TABLES}")
    with other.transaction():
        other.execute("ALTER TABLE agentruns_agentrun SET (autovacuum_enabled = off)")
    fill.fill(other, MANY, analyzed=False)

    assert pages(claimed_once()) <= 1.3 * usual


def test_a_run_that_became_ready_before_the_mark_is_found_where_a_hint_names_it(
    other: psycopg.Connection[Any],
) -> None:
    fill.fill(other, 1)
    mark = Mark()
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()::text")
        mark.since = cursor.fetchone()[0]
    run = AgentRun.objects.get()

    unnamed = claim(["noop"], new_tokens(1), "host:1:test", lease=LEASE, mark=mark)
    mark.woken = [run.pk]
    named = claim(["noop"], new_tokens(1), "host:1:test", lease=LEASE, mark=mark)

    assert unnamed == []
    assert [claimed.run_id for claimed in named] == [run.pk]


def test_a_mark_that_was_forgotten_hides_nothing(other: psycopg.Connection[Any]) -> None:
    fill.fill(other, 1)
    mark = Mark(since="infinity")

    mark.forget()

    assert len(claim(["noop"], new_tokens(2), "host:1:test", lease=LEASE, mark=mark)) == 1
