"""Plans of enqueue that a connection of the project keeps: when, and what takes them away."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from django.db import DataError, InternalError, ProgrammingError, connection, transaction
from django.test.utils import CaptureQueriesContext

from agentruns import db, enqueue_run, plans
from agentruns.models import AgentRun, Conversation
from benchmarks import fill
from benchmarks.plans import nodes

from .factories import ConversationFactory, UserFactory

pytestmark = pytest.mark.django_db(transaction=True)

ENOUGH = plans.FEW_USES + 2
"""Enqueues of one kind after which its statements are prepared."""


@pytest.fixture(autouse=True)
def user() -> Iterator[Any]:
    """On a connection that nobody has used yet."""
    connection.close()
    yield UserFactory()
    connection.close()


def turn(user: Any, *, conversation: Conversation | None = None, text: str = "Hello") -> AgentRun:
    return enqueue_run(conversation=conversation, user=user, content=text)


def turns(user: Any, count: int) -> None:
    """Of both kinds: in new conversations, and in known ones that are idle."""
    for _ in range(count):
        turn(user)
        turn(user, conversation=ConversationFactory(user=user))


def kept() -> set[str]:
    """Names of what this session has prepared."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT name FROM pg_prepared_statements WHERE name LIKE 'agentruns%'")
        return {name for (name,) in cursor.fetchall()}


def setting() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SHOW enable_seqscan")
        return str(cursor.fetchone()[0])


def test_a_connection_that_is_used_again_and_again_keeps_each_plan_once(user: Any) -> None:
    turns(user, plans.FEW_USES)
    assert kept() == set()

    turns(user, 3)
    first = kept()
    turns(user, 3)

    assert len(first) == 3  # of a new conversation, of a known one's lock, of its turn
    assert kept() == first
    assert AgentRun.objects.filter(status="queued").count() == 2 * (plans.FEW_USES + 6)


def test_an_enqueue_is_one_query_for_django_whatever_is_prepared(user: Any) -> None:
    places = [ConversationFactory(user=user) for _ in range(2 * ENOUGH)]

    for place in places:
        with CaptureQueriesContext(connection) as queries:
            turn(user, conversation=place)
        assert len(queries) == 1


@pytest.mark.parametrize("text", ["100 % of it", "%s %(name)s $1", "'; SELECT 1; --", "\\'\\"])
def test_a_prepared_enqueue_stores_what_was_said(user: Any, text: str) -> None:
    turns(user, ENOUGH)

    run = turn(user, text=text)

    assert AgentRun.objects.get(pk=run.pk).user_message.content == text


def test_where_another_process_answers_nothing_is_prepared(
    user: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a pooler, whose connections have numbers of its own."""
    connection.ensure_connection()
    monkeypatch.setattr(plans, "PID", "SELECT pg_backend_pid() + 1")

    turns(user, 2 * ENOUGH)

    assert kept() == set()


def test_a_session_that_was_told_to_discard_all_still_takes_turns(user: Any) -> None:
    turns(user, ENOUGH)
    assert kept()
    with connection.cursor() as cursor:
        cursor.execute("DISCARD ALL")

    run = turn(user)
    turns(user, ENOUGH)

    assert AgentRun.objects.filter(pk=run.pk).exists()
    assert kept() == set()


def test_a_discard_breaks_one_transaction_and_no_later_one(user: Any) -> None:
    turns(user, ENOUGH)
    with connection.cursor() as cursor:
        cursor.execute("DISCARD ALL")

    with pytest.raises(ProgrammingError, match="does not exist"), transaction.atomic():
        turn(user)

    with transaction.atomic():
        run = turn(user)
    assert AgentRun.objects.filter(pk=run.pk).exists()


def test_a_rollback_keeps_the_plans_and_nothing_else(user: Any) -> None:
    with transaction.atomic():
        turns(user, ENOUGH)
        transaction.set_rollback(True)

    assert not AgentRun.objects.exists()
    before = kept()
    turns(user, 1)
    assert len(before) == 3
    assert kept() == before


def test_what_could_not_be_prepared_is_prepared_later(user: Any) -> None:
    for _ in range(plans.FEW_USES + 1):
        turn(user)

    with transaction.atomic():
        with pytest.raises(DataError), connection.cursor() as cursor:
            cursor.execute("SELECT 1 / 0")
        with pytest.raises(InternalError, match="is aborted"):
            turn(user)
        transaction.set_rollback(True)
    assert kept() == set()

    for _ in range(ENOUGH):
        turn(user)
    assert len(kept()) == 1
    assert AgentRun.objects.count() == plans.FEW_USES + 1 + ENOUGH


def test_an_operator_of_a_kept_statement_is_no_placeholder() -> None:
    rests = [db.script(("SELECT 10 %% %s::int", [n]), is_hot=True) for n in range(1, 10)]

    assert rests == [[(10 % n,)] for n in range(1, 10)]


def test_the_callers_transaction_keeps_its_own_settings(user: Any) -> None:
    turns(user, ENOUGH)

    turns(user, 1)
    assert setting() == "on"
    with transaction.atomic():
        turns(user, 1)
        assert setting() == "on"


def test_a_kept_plan_stays_good_while_the_tables_grow(user: Any, database_url: str) -> None:
    """Nobody analyzes them in between, as in the first minutes after a deploy."""
    turns(user, 1)
    with psycopg.connect(database_url, autocommit=True) as connected:
        connected.execute("ANALYZE")
        turns(user, 3 * ENOUGH)
        fill.fill(connected, 5_000, user=user.pk, analyzed=False)

    for name in sorted(kept()):
        assert read_pages(name) < 100


def read_pages(name: str) -> int:
    """By the plan that an enqueue of a conversation that does not exist goes by."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            "SELECT cardinality(parameter_types) FROM pg_prepared_statements WHERE name = %s",
            [name],
        )
        values = ", ".join(["NULL"] * cursor.fetchone()[0])
        cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE {name} ({values})")
        [(answer,)] = cursor.fetchall()
        assert not [n for n in nodes(answer[0]["Plan"]) if n["Node Type"] == "Seq Scan"]
        return answer[0]["Plan"]["Shared Hit Blocks"] + answer[0]["Plan"]["Shared Read Blocks"]
