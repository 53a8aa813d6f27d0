"""Workers that are told to end, at any moment."""

from __future__ import annotations

import random
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from agentruns import enqueue_runs
from agentruns.models import AgentRun, Conversation
from tests.support import until

from .cluster import Cluster
from .history import (
    check,
    check_all,
    counted,
    ended,
    enqueue,
    new_conversation,
    outcome,
    reply_of,
    started,
)
from .worker import WorkerProcess

Start = Callable[..., WorkerProcess]


def hears(pid: int, number: signal.Signals) -> bool:
    """Whether the process has a handler for the signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def no_run_is_left_running() -> bool:
    return not AgentRun.objects.running().exists()


def test_a_worker_told_to_end_while_it_starts_ends_with_0(start: Start) -> None:
    for _ in range(3):
        enqueue(None, "count")
    workers = [start(ready=False, DRAIN_SECONDS=0) for _ in range(5)]
    dice = random.Random(3)
    for worker in workers:
        # Before that, it is not ours to say how the process ends.
        until(lambda pid=worker.pid: hears(pid, signal.SIGTERM), "manage.py runs")
        with pytest.raises(subprocess.TimeoutExpired):  # its start takes longer
            worker.process.wait(dice.uniform(0.0, 0.3))
        worker.signal(signal.SIGTERM)

    assert [worker.ended() for worker in workers] == [0] * 5
    assert no_run_is_left_running()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_worker_ends_at_once(start: Start, number: signal.Signals) -> None:
    worker = start(DRAIN_SECONDS=3600)
    worker.signal(number)

    assert worker.ended() == 0
    assert "ended" in worker.log


def test_a_worker_told_to_end_amid_claims_strands_nothing(start: Start) -> None:
    conversations = [new_conversation() for _ in range(500)]
    enqueue_runs(
        {"conversation": c, "content": "go", "agent": "count", "metadata": {"to": 3}}
        for c in conversations
    )
    dice = random.Random(5)
    for _ in range(4):
        before = AgentRun.objects.queued().count()
        worker = start("--concurrency", "20")
        worker.wait_for_log("claimed run", times=dice.randint(1, 100))
        assert worker.drain() == 0
        assert AgentRun.objects.queued().count() < before
        assert no_run_is_left_running()
    assert AgentRun.objects.queued().exists(), "every signal was to come amid the claims"
    for run in AgentRun.objects.ended():
        assert outcome(run) == ("completed", None)
        check(run)


def test_a_drain_longer_than_the_lease_loses_no_run(
    start: Start, conversation: Conversation, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    worker = start(DRAIN_SECONDS=60)
    run = started(enqueue(conversation, "count", gate=str(gate)))
    following = enqueue(conversation, "count", to=2)
    worker.signal(signal.SIGTERM)
    worker.wait_for_log("draining")
    start("--agents", "reader")  # its reaper would find a lapsed lease
    lapses = AgentRun.objects.get(pk=run.pk).claim_expires_at
    assert lapses is not None
    kept = AgentRun.objects.filter(pk=run.pk, claim_expires_at__gt=lapses + (lapses - lapses))

    for _ in range(4):
        until(kept.exists, "a beat while draining")
        kept = AgentRun.objects.filter(
            pk=run.pk, claim_expires_at__gt=AgentRun.objects.get(pk=run.pk).claim_expires_at
        )
    gate.touch()

    assert worker.ended() == 0
    assert outcome(ended(run)) == ("completed", None)
    assert AgentRun.objects.get(pk=following.pk).status == "queued"


def test_what_outlives_the_drains_budget_ends_worker_shutdown_by_its_own_worker(
    start: Start, tmp_path: Path
) -> None:
    worker = start("--no-reap", "--drain-timeout", "0.5")
    runs = [
        started(enqueue(None, agent, gate=str(tmp_path / "gate")))
        for agent in ("count", "plain", "deaf", "plain_deaf", "threaded")
    ]
    following = [enqueue(run.conversation, "count", to=1) for run in runs]

    assert worker.drain() == 0
    for run in runs:
        run.refresh_from_db()
        assert outcome(run) == ("failed", "worker_shutdown")
        check(run)
    assert counted(reply_of(runs[0]) or "")
    start()
    assert {outcome(ended(run)) for run in following} == {("completed", None)}


def test_a_second_signal_ends_a_worker_at_once(start: Start) -> None:
    worker = start(DRAIN_SECONDS=3600)
    run = started(enqueue(None, "count"))
    worker.signal(signal.SIGTERM)
    worker.wait_for_log("draining")
    worker.signal(signal.SIGTERM)

    assert worker.ended() == 1
    start()
    assert outcome(ended(run)) == ("failed", "worker_lost")


def test_a_worker_whose_database_is_away_ends_with_0(start: Start, cluster: Cluster) -> None:
    idle, busy = start("--agents", "reader"), start(DRAIN_SECONDS=1)
    run = started(enqueue(None, "count"))
    with cluster.down():
        busy.wait_for_log("could not store")
        assert idle.drain() == 0
        assert busy.drain() == 0
    assert f"{run.pk} (agent 'count') could not be ended" in busy.log
    start()

    assert outcome(ended(run)) == ("failed", "worker_lost")
    check_all([run.conversation])


def test_a_thread_that_an_agent_left_behind_keeps_no_worker(start: Start) -> None:
    worker = start(DRAIN_SECONDS=0)
    run = started(enqueue(None, "threaded"))

    assert worker.drain() == 0
    assert outcome(ended(run)) == ("failed", "worker_shutdown")
