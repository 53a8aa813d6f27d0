"""Side effects of runs whose worker is killed: none happens twice without a person's choice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from agentruns import retry_run
from agentruns.models import AgentRun, Conversation, Step
from tests.support import until

from .history import ended, enqueue, new_conversation, outcome, reply_of, started
from .worker import WorkerProcess

Start = Callable[..., WorkerProcess]

POINTS = ("before", "inside", "after")
ROUNDS = 20
STEPS = 60


def charges(trace: Path) -> int:
    return trace.read_text().count("charged") if trace.exists() else 0


def test_a_step_is_taken_once_wherever_its_worker_is_killed(start: Start, tmp_path: Path) -> None:
    victim = start(CONCURRENCY=100)
    runs: dict[tuple[str, int], AgentRun] = {}
    for point in POINTS:
        for number in range(ROUNDS):
            trace = str(tmp_path / f"{point}-{number}")
            runs[point, number] = enqueue(new_conversation(), "charging", point=point, trace=trace)
    for run in runs.values():
        started(run)
    victim.kill()
    start(CONCURRENCY=100)

    for (point, number), run in runs.items():
        check_repeated(run, point, tmp_path / f"{point}-{number}")
    choose_to_repeat(check_repeated(runs["inside", 0], "inside", tmp_path / "inside-0"))
    assert charges(tmp_path / "inside-0") == 2


@pytest.mark.soak
@pytest.mark.parametrize("point", POINTS)
def test_a_step_is_taken_once_in_twenty_kills_at_one_point(
    start: Start, tmp_path: Path, point: str
) -> None:
    worker = start()
    for number in range(ROUNDS):
        trace = tmp_path / str(number)
        run = started(enqueue(new_conversation(), "charging", point=point, trace=str(trace)))
        before = charges(trace)
        worker.kill()
        worker = start(ready=False)  # it takes the repeat, and is the next to be killed
        worker.wait_for_log("slots, agents", seconds=300)

        assert before == (0 if point == "before" else 1)
        retry = check_repeated(run, point, trace)
        if point == "inside":
            choose_to_repeat(retry)
            assert charges(trace) == 2


def check_repeated(run: AgentRun, point: str, trace: Path) -> AgentRun:
    """The run was lost and repeated by itself, its step taken once; the repeat."""
    assert outcome(ended(run, seconds=90)) == ("failed", "worker_lost")
    retry = ended(AgentRun.objects.get(retry_of=run), seconds=90)
    assert charges(trace) == 1
    if point == "inside":
        assert outcome(retry) == ("failed", "agent_error")
        assert "OutcomeUnknown: step 'charge:42'" in retry.traceback
    else:
        assert outcome(retry) == ("completed", None)
        assert reply_of(retry) not in (None, "another")
    return retry


def choose_to_repeat(run: AgentRun) -> None:
    """What a person does who has found out that the step had no effect."""
    Step.objects.filter(user_message_id=run.user_message_id, name="charge:42").delete()
    assert outcome(ended(retry_run(run))) == ("completed", None)


def test_steps_in_full_flight_are_taken_at_most_once(start: Start, tmp_path: Path) -> None:
    victim = start(CONCURRENCY=100)
    runs = [
        enqueue(new_conversation(), "hasty", steps=STEPS, trace=str(tmp_path / str(number)))
        for number in range(ROUNDS)
    ]
    until(lambda: Step.objects.filter(done_at__isnull=False).count() > 5 * ROUNDS, "some steps")
    victim.kill()
    assert any(AgentRun.objects.get(pk=run.pk).status == "running" for run in runs)
    start(CONCURRENCY=100)

    repeated = 0
    for number, run in enumerate(runs):
        last = ended(run, seconds=90)
        if outcome(run) == ("failed", "worker_lost"):
            last = ended(AgentRun.objects.get(retry_of=run), seconds=90)
            repeated += 1
        assert outcome(last) == ("completed", None)
        lines = (tmp_path / str(number)).read_text().splitlines()
        taken = [line.partition(" ")[2] for line in lines]
        assert len(taken) == len(set(taken))
        assert len(taken) >= STEPS - 1  # the one that was cut off may not have begun
    assert repeated


def test_a_plain_function_takes_a_step_once(
    start: Start, conversation: Conversation, tmp_path: Path
) -> None:
    start()
    run = ended(enqueue(conversation, "charging_plain", trace=str(tmp_path / "trace")))

    assert reply_of(run) == "[[4, 2], [4, 2]]"
    assert charges(tmp_path / "trace") == 1


def test_named_errors_are_retried_and_others_are_not(start: Start) -> None:
    start(POLL_SECONDS=300)  # a repeat that is delayed is started when its time comes
    named = enqueue(new_conversation(), "flaky", kind="connection", well=3)
    hopeless = enqueue(new_conversation(), "flaky", kind="connection", well=9)
    other = enqueue(new_conversation(), "flaky", kind="value", well=3)

    assert outcome(attempts(named)[-1]) == ("completed", None)
    assert len(attempts(named)) == 3
    assert {outcome(run) for run in attempts(hopeless)} == {("failed", "agent_error")}
    assert len(attempts(hopeless)) == 3
    assert len(attempts(other)) == 1


def attempts(run: AgentRun) -> list[AgentRun]:
    """The run and its retries, when the last has ended."""
    ended(run)
    following = AgentRun.objects.filter(retry_of=run).first()
    return [run, *(attempts(following) if following else [])]
