"""Workers that die, or stand still."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from agentruns import stop_run
from agentruns.models import AgentRun, Conversation
from tests.support import until

from .cluster import Cluster
from .history import (
    check_all,
    counted,
    ended,
    enqueue,
    events,
    outcome,
    reply_of,
    started,
    text_of,
)
from .worker import WorkerProcess

Start = Callable[..., WorkerProcess]


def test_a_killed_workers_run_fails_with_its_text_and_the_next_turn_runs(
    start: Start, conversation: Conversation
) -> None:
    victim = start()
    lost = started(enqueue(conversation, "count"))
    following = enqueue(conversation, "count", to=3)
    victim.kill()
    start()

    assert outcome(ended(lost)) == ("failed", "worker_lost")
    assert outcome(ended(following)) == ("completed", None)
    assert counted(reply_of(lost) or "")
    assert reply_of(following) == "0 1 2 "
    check_all([conversation])


def test_an_agent_that_may_be_repeated_is_repeated_ahead_of_the_next_turn(
    start: Start, conversation: Conversation, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    victim = start()
    lost = started(enqueue(conversation, "repeatable", gate=str(gate)))
    following = enqueue(conversation, "count", to=3)
    victim.kill()
    start()

    assert outcome(ended(lost)) == ("failed", "worker_lost")
    retry = AgentRun.objects.get(retry_of=lost)
    started(retry)
    assert AgentRun.objects.get(pk=following.pk).status == "queued"
    gate.touch()
    assert outcome(ended(retry)) == ("completed", None)
    assert outcome(ended(following)) == ("completed", None)
    check_all([conversation])


def test_nothing_is_stuck_after_everything_was_killed(start: Start, cluster: Cluster) -> None:
    victims = [start(CONCURRENCY=5), start(CONCURRENCY=5)]
    runs = [enqueue(None, "count") for _ in range(8)]
    waiting = [enqueue(run.conversation, "count", to=2) for run in runs]
    for run in runs:
        started(run)
    for victim in victims:
        victim.kill()
    cluster.restart()
    start()

    assert {outcome(ended(run)) for run in runs} == {("failed", "worker_lost")}
    assert {outcome(ended(run)) for run in waiting} == {("completed", None)}
    check_all([run.conversation for run in runs])


def test_a_worker_frozen_past_its_lease_and_reaped_writes_nothing_more(
    start: Start, conversation: Conversation, tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    frozen = start("--no-reap")
    lost = started(enqueue(conversation, "exiting", trace=str(trace)))
    following = enqueue(conversation, "count", to=3)
    frozen.freeze()
    start()
    assert outcome(ended(lost)) == ("failed", "worker_lost")
    ended(following)
    journal = len(events(lost))
    frozen.thaw()

    frozen.wait_for_log("standing down|no longer this worker's")
    until(lambda: "cancelled" in trace.read_text(), "the agent to be cancelled")
    # A run through the thawed worker proves that whatever it had to write is written.
    assert frozen.drain() == 0
    assert len(events(lost)) == journal
    check_all([conversation])


def test_a_worker_frozen_just_short_of_the_grace_beats_first_and_goes_on(
    start: Start, conversation: Conversation, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    frozen = start(GRACE_SECONDS=600)
    run = started(enqueue(conversation, "count", gate=str(gate)))
    start(GRACE_SECONDS=600)  # its reaper finds the run expired, and leaves it alone
    frozen.freeze()
    lapsed = AgentRun.objects.filter(pk=run.pk).expired(timedelta(seconds=1))
    until(lapsed.exists, "the lease to lapse")
    said = len(text_of(run))
    frozen.thaw()

    started(run, chars=said + 20)
    gate.touch()
    assert outcome(ended(run)) == ("completed", None)
    until(lambda: "stood still" in frozen.log, "the worker to see that it stood still")


def test_a_lone_worker_that_stood_still_past_the_grace_does_not_reap_its_own_run(
    start: Start, conversation: Conversation, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    frozen = start(REAP_SECONDS=0.05)
    run = started(enqueue(conversation, "count", gate=str(gate)))
    frozen.freeze()
    until(AgentRun.objects.expired(timedelta(seconds=2)).exists, "lease and grace to lapse")
    said = len(text_of(run))
    frozen.thaw()

    started(run, chars=said + 20)
    gate.touch()
    assert outcome(ended(run)) == ("completed", None)


def test_a_stop_of_a_dead_workers_run_leaves_it_to_the_reaper(
    start: Start, conversation: Conversation
) -> None:
    victim = start()
    lost = started(enqueue(conversation, "count"))
    victim.kill()
    assert stop_run(lost).cancel_requested
    following = enqueue(conversation, "count", to=3)
    start()

    assert outcome(ended(lost)) == ("failed", "worker_lost")
    assert outcome(ended(following)) == ("completed", None)
    check_all([conversation])


def test_a_recycled_worker_id_saves_no_orphan(start: Start, conversation: Conversation) -> None:
    victim = start("--worker-id", "same:1:name")
    lost = started(enqueue(conversation, "count"))
    victim.kill()
    start("--worker-id", "same:1:name")

    assert outcome(ended(lost)) == ("failed", "worker_lost")
