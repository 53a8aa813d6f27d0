"""Stops of runs under real workers, and what else ends a run early: one ending, its reason true."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from django.db import connection, transaction
from django.db.models.functions import Now

from agentruns import enqueue_run, stop_conversation, stop_run
from agentruns.models import AgentRun, Conversation
from tests.support import until

from .history import check_all, counted, ended, enqueue, events, outcome, reply_of, started, text_of
from .worker import WorkerProcess

Start = Callable[..., WorkerProcess]


def test_a_stop_is_heard_by_the_hint_long_before_the_next_beat(
    start: Start, conversation: Conversation
) -> None:
    start(LEASE_SECONDS=3600, HEARTBEAT_SECONDS=1700)
    run = started(enqueue(conversation, "count"))

    stop_run(run)

    assert outcome(ended(run)) == ("cancelled", None)
    assert counted(reply_of(run) or "")


def test_a_stop_is_heard_by_the_beat_where_no_hint_arrives(
    start: Start, conversation: Conversation
) -> None:
    start(LISTEN_DATABASE=None, POLL_SECONDS=0.2)
    run = started(enqueue(conversation, "count"))

    stop_run(run)

    assert outcome(ended(run)) == ("cancelled", None)


def test_a_stop_that_overtakes_the_claims_answer_is_heard(start: Start) -> None:
    """The hint may come before the worker knows that the run is its own."""
    start(LEASE_SECONDS=3600, HEARTBEAT_SECONDS=1700, CONCURRENCY=100)
    runs = []
    for _ in range(100):
        run = enqueue(None, "count")
        claimed = AgentRun.objects.filter(pk=run.pk).running()
        with connection.cursor() as cursor:
            sql, params = claimed.values("pk").query.sql_with_params()
            while not cursor.execute(sql, params).fetchone():
                pass
        stop_run(run)
        runs.append(run)

    assert {outcome(ended(run)) for run in runs} == {("cancelled", None)}


def test_a_run_whose_stop_was_answered_never_completes(start: Start) -> None:
    start(CONCURRENCY=50, FLUSH_FLOOR_SECONDS=0.01)
    dice = random.Random(7)
    ends = {"before": 0, "after": 0}
    runs = []
    for _ in range(80):
        run = enqueue(None, "count", to=2, pause=dice.uniform(0, 0.02))
        until(lambda run=run: not AgentRun.objects.filter(pk=run.pk).queued().exists(), "a start")
        connection.cursor().execute("SELECT pg_sleep(%s)", [dice.uniform(0, 0.03)])
        answer = stop_run(run)
        runs.append((ended(run), answer))

    for run, answer in runs:
        if answer.status == "completed":
            ends["before"] += 1
            assert run.status == "completed"
        else:
            ends["after"] += 1
            assert answer.cancel_requested
            assert run.status == "cancelled"
    assert all(ends.values()), f"the stops did not come at the end of the runs: {ends}"


def test_no_turn_starts_after_its_conversation_was_stopped(
    start: Start, conversation: Conversation
) -> None:
    start()
    runs = [enqueue(conversation, "count", to=10) for _ in range(4)]
    started(runs[0])

    stopped = stop_conversation(conversation)
    later = enqueue(conversation, "count", to=2)

    assert outcome(ended(later)) == ("completed", None)
    for run in runs:
        run.refresh_from_db()
        if run.pk in stopped.cancelled:
            assert (run.status, run.started_at) == ("cancelled", None)
    assert len(stopped.cancelled) >= 2
    check_all([conversation])


def test_a_plain_function_sees_the_stop_at_its_next_call(start: Start) -> None:
    worker = start()
    run = started(enqueue(None, "plain"))

    stop_run(run)

    assert outcome(ended(run)) == ("cancelled", None)
    assert counted(reply_of(run) or "")
    assert "ignores" not in worker.log


def test_an_async_generator_is_closed_before_its_run_is_over(start: Start, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    start()
    run = started(enqueue(None, "yielding", trace=str(trace)))

    stop_run(run)

    assert outcome(ended(run)) == ("cancelled", None)
    assert "closed" in trace.read_text()


def test_an_async_generator_that_is_given_up_is_closed_before_its_run_is_over(
    start: Start, tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    start()

    run = enqueue(None, "yielding", trace=str(trace), wrong=True)

    assert outcome(ended(run)) == ("failed", "agent_error")
    assert "closed" in trace.read_text()


def test_code_that_ignores_its_stop_is_fenced_off_named_and_keeps_its_slot(
    start: Start, conversation: Conversation, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    worker = start("--concurrency", "2")
    ignoring = started(enqueue(conversation, "deaf", gate=str(gate)))
    following = enqueue(conversation, "count")
    waiting = enqueue(None, "count", to=3)
    ended(waiting)

    stop_run(ignoring)

    assert outcome(ended(ignoring)) == ("cancelled", None)
    worker.wait_for_log(f"{ignoring.pk} .agent 'deaf'. ignores its cancellation")
    # The next turn has the second slot; a third run finds none until the code returns.
    started(following)
    late = enqueue(None, "count", to=3)
    started(following, chars=200)
    assert AgentRun.objects.get(pk=late.pk).status == "queued"
    gate.touch()
    assert outcome(ended(late)) == ("completed", None)
    stop_run(following)
    ended(following)
    check_all([conversation])


def test_a_plain_function_that_ignores_its_stop_is_fenced_off_as_well(
    start: Start, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    worker = start()
    run = started(enqueue(None, "plain_deaf", gate=str(gate)))

    stop_run(run)

    assert outcome(ended(run)) == ("cancelled", None)
    assert reply_of(run) == "once"
    worker.wait_for_log("'plain_deaf'. ignores its cancellation")


def test_an_agent_that_blocks_the_event_loop_costs_nobody_a_lease(
    start: Start, tmp_path: Path
) -> None:
    gate, sibling_gate = tmp_path / "gate", tmp_path / "sibling"
    worker = start()
    start("--agents", "reader")  # a second reaper
    sibling = started(enqueue(None, "count", gate=str(sibling_gate)))
    plain = started(enqueue(None, "plain", gate=str(sibling_gate)))
    blocked = enqueue(None, "blocking", gate=str(gate))
    worker.wait_for_log("'blocking'. blocks the event loop")

    AgentRun.objects.running().update(claim_expires_at=Now())
    renewed = AgentRun.objects.running().filter(claim_expires_at__gt=Now())
    until(lambda: renewed.count() == 3, "a beat for all three")
    said = len(text_of(plain))
    until(lambda: len(text_of(plain)) > said, "text of the plain function")
    gate.touch()
    assert outcome(ended(blocked)) == ("completed", None)
    sibling_gate.touch()
    assert outcome(ended(sibling)) == ("completed", None)
    assert outcome(ended(plain)) == ("completed", None)
    assert worker.count("blocks the event loop") == 1


def test_a_run_that_takes_too_long_ends_timeout(start: Start, conversation: Conversation) -> None:
    start(RUN_TIMEOUT_SECONDS=1)
    run = enqueue(conversation, "count")
    following = enqueue(conversation, "count", to=2)

    assert outcome(ended(run)) == ("failed", "timeout")
    assert counted(reply_of(run) or "")
    assert outcome(ended(following)) == ("completed", None)


def test_a_worker_that_cannot_renew_ends_its_run_itself(start: Start, tmp_path: Path) -> None:
    """A locked row keeps the beats out; released before the grace is over, no reaper comes."""
    trace = tmp_path / "trace"
    worker = start(GRACE_SECONDS=600)
    run = started(enqueue(None, "exiting", trace=str(trace)))

    with transaction.atomic():
        AgentRun.objects.select_for_update().get(pk=run.pk)
        worker.wait_for_log("the lease could not be renewed")
        until(lambda: "cancelled" in trace.read_text(), "the agent to be cancelled")

    assert outcome(ended(run)) == ("failed", "worker_lost")
    assert counted(reply_of(run) or "")


def test_a_stop_and_a_shutdown_at_once_leave_one_ending_with_the_first_reason(start: Start) -> None:
    worker = start(DRAIN_SECONDS=0, STOP_GRACE_SECONDS=5)
    run = started(enqueue(None, "lingering", linger=0.5))

    stop_run(run)
    worker.wait_for_log("taking my time")

    assert worker.drain() == 0
    assert outcome(ended(run)) == ("cancelled", None)


def test_a_timeout_keeps_its_reason_when_a_stop_follows(start: Start, tmp_path: Path) -> None:
    worker = start(RUN_TIMEOUT_SECONDS=1, STOP_GRACE_SECONDS=5)
    run = started(enqueue(None, "lingering", linger=0.5))
    worker.wait_for_log("taking my time")

    stop_run(run)

    assert outcome(ended(run)) == ("failed", "timeout")


def test_a_value_that_only_the_server_refuses_fails_its_run_alone(
    start: Start, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    worker = start()
    siblings = [started(enqueue(None, "count", gate=str(gate))) for _ in range(5)]
    refused = [enqueue(None, "refused") for _ in range(3)]

    for run in refused:
        assert outcome(ended(run)) == ("failed", "agent_error")
        assert reply_of(run) == "before"
        worker.wait_for_log(f"{run.pk} .agent 'refused'. emitted a value that PostgreSQL refuses")
    gate.touch()
    for run in siblings:
        assert outcome(ended(run)) == ("completed", None)
        assert counted(reply_of(run) or "")


@pytest.mark.parametrize("agent", ["side_by_side", "side_by_side_plain"])
def test_what_has_happened_is_journaled_although_the_run_was_told_to_end(
    start: Start, conversation: Conversation, agent: str
) -> None:
    start()
    run = started(enqueue(conversation, agent))

    stop_run(run)

    assert outcome(ended(run)) == ("cancelled", None)
    told = [event for event in events(run) if event.type in ("tool_call_finished", "usage")]
    calls = [event.payload for event in told if event.type == "tool_call_finished"]
    assert calls == [
        {"call_id": "c2", "name": "second", "result": 2},
        {"call_id": "c1", "name": "first", "error": {"code": "cut_off"}},
    ]
    if agent == "side_by_side":
        assert [event.payload for event in told if event.type == "usage"] == [{"input_tokens": 1}]


def test_a_run_that_passes_its_agents_limit_ends_with_what_it_said(start: Start) -> None:
    start()
    codes = {"brief": "timeout", "quiet": "silent", "spending": "token_limit"}
    runs = {agent: enqueue(None, agent) for agent in codes}

    assert {agent: outcome(ended(run))[1] for agent, run in runs.items()} == codes
    assert counted(reply_of(runs["brief"]) or "")
    assert reply_of(runs["quiet"]) == "standing "
    used = [event for event in events(runs["spending"]) if event.type == "usage"]
    assert len(used) == 11  # the report that passes the limit is kept


def test_a_request_lowers_its_runs_limits(start: Start, conversation: Conversation) -> None:
    start()
    asked = {"conversation": conversation, "agent": "spending", "content": "go"}
    lower = enqueue_run(**asked, limits={"tokens": 50})
    higher = enqueue_run(**asked, limits={"tokens": 5000})

    assert outcome(ended(lower)) == outcome(ended(higher)) == ("failed", "token_limit")
    used = [[event.type for event in events(run)].count("usage") for run in (lower, higher)]
    assert used == [6, 11]


def test_a_sweep_elsewhere_ends_a_run_that_its_worker_lets_run_on(start: Start) -> None:
    lenient = start("--no-reap", RUN_TIMEOUT_SECONDS=3600)
    run = started(enqueue(None, "count"))

    start("--agents", "quiet", RUN_TIMEOUT_SECONDS=1, GRACE_SECONDS=0, STOP_GRACE_SECONDS=0.5)

    assert outcome(ended(run)) == ("failed", "timeout")
    assert counted(reply_of(run) or "")
    lenient.wait_for_log(f"{run.pk} .*standing down")
