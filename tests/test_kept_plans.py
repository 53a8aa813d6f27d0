"""Plans that a lane keeps are made while the tables are small, and must be good when they grow."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from agentruns import db
from agentruns.claim import _claim_sql
from agentruns.events import _PAGES
from agentruns.finalize import _end_sql
from agentruns.journal import _append_sql
from agentruns.lease import _beat_sql
from agentruns.questions import _pause_sql
from benchmarks import fill
from benchmarks.plans import nodes

from .factories import UserFactory

pytestmark = pytest.mark.django_db(transaction=True)

STATEMENTS = {
    "claim": _claim_sql(("noop",)),
    "append": _append_sql(),
    "end": _end_sql(None, False),
    "beat": _beat_sql(),
    "pause": _pause_sql(),
    "read": _PAGES,
}


@pytest.fixture
def small(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connected:
        UserFactory(id=1)
        fill.fill(connected, 3)


@pytest.fixture
def lane() -> Iterator[ThreadPoolExecutor]:
    """A thread with a lane that keeps its plans, as claims, journal and viewers have."""
    opened = db.Lane("plans", limit=10, prepares=True)
    with ThreadPoolExecutor(1, initializer=opened.open) as thread:
        yield thread
        thread.submit(opened.close).result()


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_kept_plan_walks_through_no_table(
    small: None, lane: ThreadPoolExecutor, name: str
) -> None:
    text = STATEMENTS[name]
    params = [None] * text.count("%s")
    question = f"EXPLAIN (FORMAT JSON) {text}"

    [(answer,)] = lane.submit(db.script, (question, params)).result()

    plan: dict[str, Any] = (json.loads(answer) if isinstance(answer, str) else answer)[0]["Plan"]
    walked = [node["Relation Name"] for node in nodes(plan) if node["Node Type"] == "Seq Scan"]
    assert walked == []
