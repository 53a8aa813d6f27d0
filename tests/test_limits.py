"""Limits: what a request may lower, where it is kept, and how the sweep holds runs to it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import connection
from django.db.models.functions import Now

from agentruns import InvalidContent, Limits, agents, enqueue_run, enqueue_runs, retry_run
from agentruns.claim import Claimed, claim, new_tokens
from agentruns.finalize import MESSAGES
from agentruns.limits import BATCH, end_overdue
from agentruns.models import AgentRun, RunEvent, RunStatus
from agentruns.reaper import Reaper, Swept, reap

from .factories import ConversationFactory, UserFactory
from .races.world import end, move

pytestmark = pytest.mark.django_db(transaction=True)

LEASE = timedelta(seconds=30)
GRACE = timedelta(seconds=30)


@pytest.fixture(autouse=True)
def limited() -> Iterator[None]:
    """The agents of these tests, whose code is never run."""
    kinds: dict[str, dict[str, Any]] = {
        "free": {"retry": True},
        "brisk": {"limits": Limits(queue_seconds=60, run_seconds=60)},
    }
    for name, options in kinds.items():
        agents.agent(name, **options)(limited)
    yield
    for name in kinds:
        del agents._agents[name]


@pytest.fixture
def sql() -> Iterator[psycopg.Connection]:
    """A plain connection, as from psql."""
    params = connection.get_connection_params()
    wanted = ("host", "port", "user", "password", "dbname")
    arguments = {key: params[key] for key in wanted if params.get(key)}
    with psycopg.connect(**arguments, autocommit=True) as plain:
        yield plain


def sweep() -> Swept:
    return Reaper(grace=GRACE, retention=timedelta(days=1)).sweep()


def ask(agent: str = "free", **options: Any) -> AgentRun:
    return enqueue_run(
        conversation=options.pop("conversation", None) or ConversationFactory(),
        content="hi",
        agent=agent,
        **options,
    )


def take(count: int = 1) -> list[Claimed]:
    return claim(["free", "brisk"], new_tokens(count), "host:1:test", lease=LEASE)


def test_a_claim_is_told_the_limits_of_the_request() -> None:
    ask(limits={"tokens": 9, "cost": None})
    ask(limits=Limits(cost=0.5))
    ask()

    assert [claimed.limits for claimed in take(3)] == [Limits(tokens=9), Limits(cost=0.5), Limits()]


def test_requests_of_a_batch_have_limits_of_their_own() -> None:
    user = UserFactory()
    common = {"conversation": None, "user": user, "content": "hi", "agent": "free"}

    runs = enqueue_runs([common | {"limits": {"tokens": 9}}, common])

    assert [AgentRun.objects.get(pk=run.pk).limits for run in runs] == [{"tokens": 9}, None]
    with pytest.raises(InvalidContent, match=r"limits\.tokens is 0"):
        enqueue_runs([common, common | {"limits": {"tokens": 0}}])
    assert AgentRun.objects.count() == 2


def test_a_retry_has_the_limits_of_its_run_also_when_the_input_is_trimmed() -> None:
    run = ask(limits={"tokens": 9})
    end(take()[0], RunStatus.FAILED)
    move(run.pk, input="NULL")

    assert AgentRun.objects.get(pk=retry_run(run).pk).limits == {"tokens": 9}


def test_a_retry_that_nobody_asked_for_has_the_limits_of_its_run() -> None:
    run = ask(limits={"tokens": 9})
    (claimed,) = take()
    move(run.pk, claim_expires_at="now() - interval '1 hour'")

    assert reap(claimed.fence, claimed.conversation_id, grace=GRACE)

    assert AgentRun.objects.get(retry_of=run).limits == {"tokens": 9}


def test_a_release_that_knows_fewer_limits_runs_what_names_more() -> None:
    run = ask(limits={"tokens": 9})
    move(run.pk, limits="""'{"tokens": 9, "of_tomorrow": 1}'""")

    assert take()[0].limits == Limits(tokens=9)


def wait(run: AgentRun, seconds: float) -> None:
    """Have the run stand ready since so many seconds."""
    move(run.pk, ready_at=f"now() - interval '{seconds} s'")


def outcome(run: AgentRun) -> tuple[str, str | None]:
    run.refresh_from_db()
    return run.status, run.error and run.error["code"]


def test_a_run_is_not_claimed_after_its_time_in_queue() -> None:
    late, own, brisk = (ask(limits={"queue_seconds": 60}), ask(), ask("brisk"))
    for run in (late, own, brisk):
        wait(run, 61)

    assert [claimed.run_id for claimed in take(3)] == [own.pk]
    for run in (late, brisk):
        wait(run, 59)
    assert {claimed.run_id for claimed in take(3)} == {late.pk, brisk.pk}


@pytest.mark.parametrize(
    ("limits", "kept"), [({"queue_seconds": 9}, 9), ({"queue_seconds": 90}, 60), ({}, 60)]
)
def test_a_request_lowers_the_time_in_queue(limits: dict[str, float], kept: float) -> None:
    assert ask("brisk", limits=limits).limits == {"queue_seconds": kept}


def test_a_run_past_its_time_in_queue_fails_and_the_next_turn_may_start() -> None:
    first = ask("brisk")
    second = ask("brisk", conversation=first.conversation)
    wait(first, 61)

    assert sweep().limited == 1

    assert outcome(first) == ("failed", "queue_timeout")
    error = {"code": "queue_timeout", "message": MESSAGES["queue_timeout"]}
    last = RunEvent.objects.filter(run=first).last()
    assert (last.type, last.seq, first.last_seq) == ("complete", 3, 3)
    assert last.payload == {"status": "failed", "error": error, "message_id": None}
    assert (first.user_message.status, first.user_message.position) == ("sent", 1)
    assert [claimed.run_id for claimed in take(2)] == [second.pk]
    second.user_message.refresh_from_db()
    assert second.user_message.position == 2
    assert sweep().limited == 0


def test_waiting_behind_another_turn_is_no_time_in_queue() -> None:
    first = ask("brisk")
    second = ask("brisk", conversation=first.conversation)
    move(second.pk, created_at="now() - interval '1 hour'")
    (claimed,) = take()
    sweep()

    end(claimed)

    assert [claimed.run_id for claimed in take()] == [second.pk]


def test_a_run_past_its_time_in_queue_can_be_retried() -> None:
    run = ask("brisk")
    wait(run, 61)
    sweep()

    retry = retry_run(run)

    assert [claimed.run_id for claimed in take()] == [retry.pk]
    assert outcome(retry) == ("running", None)
    run.user_message.refresh_from_db()
    assert (run.user_message.status, run.user_message.position) == ("sent", 1)


def test_a_sweep_ends_all_that_are_late_and_steps_over_what_is_locked(
    sql: psycopg.Connection,
) -> None:
    runs = [ask("brisk") for _ in range(BATCH + 2)]
    AgentRun.objects.update(ready_at=Now() - timedelta(seconds=61))
    free, claimed, stopping = runs[0], runs[1], runs[2]
    sql.execute("BEGIN")
    sql.execute("SELECT FROM agentruns_agentrun WHERE id = %s FOR UPDATE", [claimed.pk])
    sql.execute(
        "SELECT FROM agentruns_conversation WHERE id = %s FOR UPDATE", [stopping.conversation_id]
    )

    assert sweep().limited == BATCH

    assert outcome(free) == ("failed", "queue_timeout")
    assert outcome(claimed) == outcome(stopping) == ("queued", None)
    sql.execute("COMMIT")
    assert sweep().limited == 2


def test_limits_of_what_waits_cost_a_sweep_nothing_where_none_is_late(
    django_assert_max_num_queries: Any,
) -> None:
    ask("brisk")

    with django_assert_max_num_queries(1):
        assert end_overdue() == 0
