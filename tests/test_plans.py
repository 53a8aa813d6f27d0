"""Plans of enqueue that a connection of the project keeps: when, and what takes them away."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from django.db import IntegrityError, OperationalError, connection, transaction
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


def test_where_another_process_answers_nothing_is_prepared(user: Any) -> None:
    """As behind a pooler, whose connections have numbers of its own."""
    connection.ensure_connection()
    plans.of(connection.connection)._pid += 1

    turns(user, 2 * ENOUGH)

    assert kept() == set()


def discard() -> None:
    with connection.cursor() as cursor:
        cursor.execute("DISCARD ALL")


def retype(kind: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE agentruns_agentrun ALTER turn TYPE {kind}")


@pytest.fixture
def wider() -> Iterator[Any]:
    yield lambda: retype("bigint")
    retype("integer")


def test_a_session_that_was_told_to_discard_all_still_takes_turns(user: Any) -> None:
    turns(user, ENOUGH)
    assert kept()
    discard()

    run = turn(user)
    turns(user, ENOUGH)

    assert AgentRun.objects.filter(pk=run.pk).exists()
    assert kept() == set()


def test_a_session_whose_columns_have_other_types_now_still_takes_turns(
    user: Any, wider: Any
) -> None:
    turns(user, ENOUGH)
    wider()

    runs = [turn(user) for _ in range(3)]

    assert AgentRun.objects.filter(pk__in=[run.pk for run in runs]).count() == 3


def test_a_transaction_does_without_what_may_be_gone(user: Any) -> None:
    turns(user, ENOUGH)
    discard()

    with transaction.atomic():
        turns(user, ENOUGH)

    assert AgentRun.objects.count() == 4 * ENOUGH
    assert kept() == set()


def test_nothing_is_kept_where_preparing_failed(user: Any) -> None:
    for _ in range(plans.FEW_USES):
        turn(user)

    with pytest.raises(IntegrityError):
        turn(UserFactory.build(id=2_000_000_000))
    left = kept()
    turns(user, ENOUGH)

    assert len(left) == 1
    assert kept() == left
    assert AgentRun.objects.count() == plans.FEW_USES + 2 * ENOUGH


@pytest.mark.parametrize("reads_on", [True, False])
def test_a_statement_that_a_wrapper_puts_in_front_does_not_matter(
    user: Any, reads_on: bool
) -> None:
    """As django-pghistory does, which reads on to the last answer."""

    def prefixed(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if not reads_on and not sql.rpartition(";\n")[2].lstrip().startswith(("WITH", "EXECUTE")):
            return execute(sql, params, many, context)
        done = execute(f"SELECT set_config('a.b', 'c', true); {sql}", params, many, context)
        while reads_on and context["cursor"].nextset():
            pass
        return done

    with connection.execute_wrapper(prefixed):
        turns(user, 2 * ENOUGH)
        with transaction.atomic():
            turns(user, 1)

    assert AgentRun.objects.count() == 4 * ENOUGH + 2


def test_every_enqueue_asks_django_for_its_cursor(
    user: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As django-tenants sets the tenant's schema there."""
    asked = []
    given = connection._cursor
    monkeypatch.setattr(connection, "_cursor", lambda *a: asked.append(1) or given(*a))

    for number in range(2 * ENOUGH):
        turn(user)
        assert len(asked) == number + 1


def test_a_connection_that_is_gone_is_djangos_error(user: Any) -> None:
    turns(user, ENOUGH)
    connection.connection.close()

    with pytest.raises(OperationalError, match="closed"):
        turn(user)


def test_an_operator_of_a_kept_statement_is_no_placeholder() -> None:
    text = "SELECT 10 %% %s::int, pg_backend_pid()"

    rests = [db.script((text, [number]), is_hot=True)[0][0] for number in range(1, 10)]

    assert rests == [10 % number for number in range(1, 10)]


def test_a_thread_with_limits_of_its_own_keeps_them() -> None:
    """Where its connection took none when it was opened, they go with each statement."""

    def limit() -> str:
        lane = db.Lane("limited", limit=7)
        lane.open(pooled=True)
        text = "SELECT current_setting('statement_timeout'), pg_backend_pid()"
        [(found, _)] = db.script((text, []), is_hot=True)
        lane.close()
        return str(found)

    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(limit).result() == "7s"


def test_the_session_keeps_its_own_settings(user: Any) -> None:
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
