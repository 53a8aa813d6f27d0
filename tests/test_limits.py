"""Limits: what a request may lower, where it is kept, and how the sweep holds runs to it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import connection, transaction
from django.db.models.functions import Now

from agentruns import InvalidContent, Limits, agents, enqueue_run, enqueue_runs, retry_run
from agentruns.claim import Claimed, claim, new_tokens
from agentruns.conf import get_config
from agentruns.execution import Execution
from agentruns.finalize import MESSAGES
from agentruns.journal import Row, Standing, append
from agentruns.lease import heartbeat
from agentruns.limits import BATCH, Overrun, Overruns, end_overdue, end_overrun
from agentruns.models import AgentRun, Message, RunEvent, RunStatus
from agentruns.reaper import Reaper, Swept, reap
from agentruns.worker import STALLED_SECONDS, Worker

from .factories import ConversationFactory, UserFactory
from .races.world import end, move, say

pytestmark = pytest.mark.django_db(transaction=True)

LEASE = timedelta(seconds=30)
GRACE = timedelta(seconds=30)


AGENTS: dict[str, dict[str, Any]] = {
    "free": {"retry": True},
    "brisk": {"limits": Limits(queue_seconds=60, run_seconds=60)},
    "hushed": {"limits": Limits(silence_seconds=60)},
    "thrifty": {"limits": Limits(tokens=5)},
    "cheap": {"limits": Limits(cost=0.5)},
}


async def never_run(run: Any) -> None:
    """The tests write what a worker would."""


for name, options in AGENTS.items():
    agents.agent(name, **options)(never_run)


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


# Held to by the sweep: the tests beat for a run and do nothing else, as a worker that stands


def late(run: AgentRun, seconds: float = 3600) -> None:
    """Have all that the run did have been done so many seconds ago."""
    move(run.pk, started_at=f"now() - interval '{seconds} s'")
    events = list(run.events.order_by("seq"))  # its rows never change: they are written anew
    with transaction.atomic():
        RunEvent.objects.filter(run=run)._raw_delete("default")
        for event in events:
            event.created_at = Now() - timedelta(seconds=seconds)
        RunEvent.objects.bulk_create(events)


def hold(agent: str, **options: Any) -> tuple[AgentRun, Claimed]:
    """A run that is claimed, has said something and has reported six tokens for 0.6."""
    run = ask(agent, **options)
    (claimed,) = claim([agent], new_tokens(1), "host:1:test", lease=LEASE)
    usage = Row(run.pk, 5, "usage", '{"input_tokens": 4, "output_tokens": 2, "cost": 0.6}')
    say(claimed, "so far")
    assert append([(claimed.fence, [usage])])[run.pk] is Standing.HELD
    return run, claimed


def overruns(longest: float = 7200, grace: float = 40) -> Overruns:
    return Overruns(longest=longest, grace=timedelta(seconds=grace))


CASES = [
    ("brisk", {}, "timeout"),
    ("hushed", {}, "silent"),
    ("thrifty", {}, "token_limit"),
    ("cheap", {}, "cost_limit"),
    ("free", {"run_seconds": 60}, "timeout"),
    ("free", {"silence_seconds": 60}, "silent"),
    ("free", {"tokens": 5}, "token_limit"),
    ("free", {"cost": 0.5}, "cost_limit"),
]


@pytest.mark.parametrize(("agent", "limits", "code"), CASES)
def test_a_sweep_ends_what_its_worker_does_not(
    agent: str, limits: dict[str, float], code: str
) -> None:
    run, claimed = hold(agent, limits=limits)
    late(run)
    beat = heartbeat([claimed.fence], lease=LEASE)[run.pk]
    assert beat.standing is Standing.HELD

    assert overruns().end(spared=()) == 1

    assert outcome(run) == ("failed", code)
    reply = Message.objects.get(pk=run.reply_message_id)
    assert (reply.content, reply.status) == ("so far", "partial")
    assert say(claimed, "more", seq=6) is Standing.SUPERSEDED
    assert end(claimed).standing is Standing.SUPERSEDED
    assert heartbeat([claimed.fence], lease=LEASE)[run.pk].standing is Standing.SUPERSEDED
    assert [event.type for event in run.events.order_by("seq")][-2:] == ["usage", "complete"]
    assert not AgentRun.objects.filter(retry_of=run).exists()


@pytest.mark.parametrize(("agent", "limits", "code"), CASES)
def test_a_sweep_gives_the_worker_a_grace(agent: str, limits: dict[str, float], code: str) -> None:
    run, _ = hold(agent, limits=limits)
    late(run, 39 if code.endswith("_limit") else 99)

    assert overruns().end(spared=()) == 0
    assert overruns(grace=38).end(spared=()) == 1


def test_a_sweep_leaves_alone_what_is_within_its_limits() -> None:
    limits = {"run_seconds": 7200, "silence_seconds": 7200, "tokens": 6, "cost": 0.6}
    late(hold("free", limits=limits)[0])
    late(hold("free")[0])

    assert overruns().end(spared=()) == 0


def test_no_run_is_longer_than_any_may_be() -> None:
    run, _ = hold("free")
    move(run.pk, agent="'unknown here'")
    late(run)

    assert overruns(longest=3500).end(spared=()) == 1
    assert outcome(run) == ("failed", "timeout")


def test_a_sweep_spares_what_its_own_worker_holds_to_its_limits() -> None:
    run, _ = hold("brisk")
    late(run)

    assert overruns().end(spared=[run.pk]) == 0


@pytest.fixture
def worker() -> Iterator[Worker]:
    """A worker that was not started."""
    worker = Worker(get_config(), agents=["brisk"])
    yield worker
    sockets = (worker._poke_in, worker._poke_out, worker.hub._waker_in, worker.hub._waker_out)
    for closing in (*sockets, worker.host.loop):
        closing.close()


def test_a_worker_that_stands_holds_no_run_to_its_limits(worker: Worker) -> None:
    run, claimed = hold("brisk")
    worker._executions[run.pk] = Execution(claimed, agents.get_agent("brisk"), lease_until=0)
    assert worker.enforced() == worker.held() == [run.pk]

    worker._ticked -= STALLED_SECONDS

    assert (worker.enforced(), worker.held()) == ([], [run.pk])


def test_what_does_not_beat_is_lost_whatever_its_limits_are() -> None:
    run, _ = hold("brisk")
    late(run)
    move(run.pk, claim_expires_at="now() - interval '1 s'")

    assert overruns().end(spared=()) == 0


def test_a_run_that_speaks_before_its_row_is_held_is_not_silent() -> None:
    run, claimed = hold("hushed")
    late(run)
    found = Overrun(claimed.fence, claimed.conversation_id, "silent", 60, None, None)
    say(claimed, "at last", seq=6)

    assert not end_overrun(found, "silent", grace=GRACE)
    assert outcome(run) == ("running", None)


def test_what_was_added_up_is_not_added_again() -> None:
    run, claimed = hold("free", limits={"tokens": 10})
    sweeps = overruns()
    late(run)

    assert [sweeps.end(spared=()) for _ in range(3)] == [0, 0, 0]

    usage = Row(run.pk, 6, "usage", '{"input_tokens": 4, "output_tokens": "many"}')
    assert append([(claimed.fence, [usage])])[run.pk] is Standing.HELD
    late(run)
    assert sweeps.end(spared=()) == 0
    more = Row(run.pk, 7, "usage", '{"output_tokens": 1e400}')
    assert append([(claimed.fence, [more])])[run.pk] is Standing.HELD
    late(run)
    assert sweeps.end(spared=()) == 1
    assert outcome(run) == ("failed", "token_limit")


def test_a_sweep_does_not_wait_for_the_ending_that_a_worker_writes(
    sql: psycopg.Connection,
) -> None:
    run, claimed = hold("brisk")
    late(run)
    sql.execute("BEGIN")
    sql.execute(
        "UPDATE agentruns_agentrun SET status = 'completed', finished_at = now() WHERE id = %s",
        [run.pk],
    )

    assert overruns().end(spared=()) == 0

    sql.execute("ROLLBACK")
    assert overruns().end(spared=()) == 1
    assert end(claimed).standing is Standing.SUPERSEDED
