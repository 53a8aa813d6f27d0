"""Runs that ask a person: what is kept, what is given up, and what comes back."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentruns import AlreadyAnswered, answer_run, stop_conversation, stop_run
from agentruns.models import AgentRun, Conversation, Message, Question
from agentruns.retry import retry_run
from tests.support import pointed_at, until

from .cluster import Cluster
from .history import ended, enqueue, events, new_conversation, outcome, reply_of, started, text_of
from .worker import WorkerProcess

Start = Callable[..., WorkerProcess]

FORMS = (
    *("asking", "asking_plain", "asking_yielding", "asking_blocking_yielding"),
    *("asking_in_a_tool", "asking_aside", "asking_tidily"),
    *("asking_on_the_way_out", "asking_in_another_loop"),
)
UNTRUE = ("asking_another", "asking_out_of_order", "asking_no_more")


def waiting(run: AgentRun) -> AgentRun:
    """Wait until the run waits for an answer."""

    def look() -> bool:
        run.refresh_from_db()
        assert not run.has_ended, f"{outcome(run)}\n{run.traceback}"
        return run.status == "waiting"

    until(look, f"{run} to wait for an answer")
    return run


def lines(trace: Path) -> list[str]:
    text = trace.read_text() if trace.exists() else ""
    return [line.partition(" ")[2] for line in text.splitlines()]


@pytest.fixture(scope="module")
def runs(
    cluster: Cluster, django_db_blocker: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, AgentRun]]:
    """One run of each agent that asks, answered by one worker."""
    folder = tmp_path_factory.mktemp("asking")
    url = cluster.create()
    with django_db_blocker.unblock(), pointed_at(url):
        worker = WorkerProcess(url, folder / "log", ["--concurrency", "50"], {})
        try:
            names = (*FORMS, *UNTRUE)
            runs = {name: enqueue(None, name, trace=str(folder / name)) for name in names}
            for run in runs.values():
                answer_run(waiting(run), {"yes": True})
            runs |= {kind: enqueue(None, "asking_oddly", kind=kind) for kind in ("refused", "x")}
            runs["step"] = enqueue(None, "asking_in_a_step")
            runs["calls"] = enqueue(None, "asking_side_by_side", trace=str(folder / "calls"))
            for answer in ("first", "second"):
                answer_run(waiting(runs["calls"]), answer)
            for run in runs.values():
                ended(run)
            assert "ignores its cancellation" not in worker.log
            yield runs
        finally:
            print(worker.log)
            worker.destroy()
    cluster.drop(url)


@pytest.mark.parametrize("form", FORMS)
def test_an_answer_reaches_every_form_of_agent(runs: dict[str, AgentRun], form: str) -> None:
    run = runs[form]

    assert outcome(run) == ("completed", None), run.traceback
    number = "0" if form == "asking" else ""
    said = "done" if form == "asking_in_a_tool" else "{'yes': True}"
    assert reply_of(run) == f"q{number} {said} "


def test_the_journal_goes_on_where_it_stood(runs: dict[str, AgentRun]) -> None:
    journal = events(runs["asking"])

    assert [event.type for event in journal] == [
        *("user_message_created", "run_queued", "run_started", "content_delta", "usage"),
        *("input_required", "input_received", "run_resumed", "content_delta", "complete"),
    ]
    required, received = journal[5].payload, journal[6].payload
    assert required.pop("expires_at").endswith("Z")
    assert required == {"key": "1", "question": {"number": 0}}
    assert received == {"key": "1", "answer": {"yes": True}}


def test_a_step_before_the_question_is_taken_once(runs: dict[str, AgentRun]) -> None:
    for form in ("asking", "asking_plain"):
        assert len(lines(Path(runs[form].metadata["trace"]))) == 1


def test_a_tool_call_that_asks_is_one_call(runs: dict[str, AgentRun]) -> None:
    journal = [e for e in events(runs["asking_in_a_tool"]) if e.type.startswith("tool_call")]
    reply = Message.objects.get(pk=runs["asking_in_a_tool"].reply_message_id)

    assert [event.type for event in journal] == ["tool_call_started", "tool_call_finished"]
    assert len({event.payload["call_id"] for event in journal}) == 1
    [part] = reply.parts
    assert part["result"] == {"yes": True}


def test_tool_calls_that_ask_side_by_side_are_journaled_once_each(
    runs: dict[str, AgentRun],
) -> None:
    """Called again, the code comes to them in another order, and not first to what was answered."""
    run = runs["calls"]
    assert outcome(run) == ("completed", None), run.traceback

    journal = events(run)
    asked = [event.payload["key"] for event in journal if event.type == "input_required"]
    calls = [(e.payload["call_id"], e.type) for e in journal if e.type.startswith("tool_call")]

    assert asked == ["a", "b"]
    ends = ("tool_call_started", "tool_call_finished")
    assert sorted(calls) == sorted((name, end) for name in ("a", "b", "look") for end in ends)
    assert all(calls.index((name, ends[0])) < calls.index((name, ends[1])) for name in "ab")
    reply = Message.objects.get(pk=run.reply_message_id)
    assert reply.content == "first second look"
    assert {part["name"]: part["result"] for part in reply.parts} == {
        "a": "first",
        "b": "second",
        "look": "look",
    }


def test_code_that_asks_tidies_up_and_cannot_catch_the_way_out(runs: dict[str, AgentRun]) -> None:
    run = runs["asking_tidily"]

    assert lines(Path(run.metadata["trace"])) == ["tidied;", "tidied;"]
    assert [event.type for event in events(run)].count("usage") == 1


@pytest.mark.parametrize("name", UNTRUE)
def test_a_question_that_differs_is_an_error_and_no_answer(
    runs: dict[str, AgentRun], name: str
) -> None:
    assert outcome(runs[name]) == ("failed", "agent_error")
    assert "QuestionChanged" in runs[name].traceback


def test_what_cannot_be_asked_is_an_error_of_the_agent(runs: dict[str, AgentRun]) -> None:
    for name, reason in (
        ("refused", "DataError"),
        ("x", "question '1' cannot be written as JSON"),
        ("step", "inside step 'step'"),
    ):
        assert outcome(runs[name]) == ("failed", "agent_error")
        assert reason in runs[name].traceback
    assert reply_of(runs["refused"]) == "q "


def test_a_waiting_run_takes_no_worker_and_any_worker_goes_on(start: Start, tmp_path: Path) -> None:
    """With one slot: the worker that asked is killed, others answer the questions that follow."""
    asker = start(CONCURRENCY=1)
    conversation = new_conversation()
    run = enqueue(conversation, "asking", asks=2, trace=str(tmp_path / "trace"))
    behind = enqueue(conversation, "count", to=1)
    waiting(run)
    assert (run.claim_token, run.claim_expires_at) == (None, None)
    assert outcome(ended(enqueue(None, "count", to=1))) == ("completed", None)  # its slot is free
    asker.kill()
    start(CONCURRENCY=1)

    for answer in ("first", "second"):
        waiting(run)
        behind.refresh_from_db()
        assert behind.started_at is None, "the turn behind it did not wait"
        answer_run(run, answer)
    started_at = run.started_at

    assert outcome(ended(run)) == ("completed", None)
    assert reply_of(run) == "q0 first q1 second "
    assert lines(tmp_path / "trace") == ["step 0;", "step 1;"]
    assert run.started_at == started_at
    assert ended(behind).started_at >= run.finished_at


def test_a_stop_ends_a_waiting_run_without_any_worker(start: Start) -> None:
    worker = start()
    conversation = new_conversation()
    run = waiting(enqueue(conversation, "asking"))
    alone = waiting(enqueue(None, "asking"))
    behind = enqueue(conversation, "count", to=1)
    worker.kill()

    stopped = stop_conversation(conversation)
    stop_run(alone)

    assert set(stopped.cancelled) == {run.pk, behind.pk}
    assert [draft.pk for draft in stopped.drafts] == [behind.user_message_id]
    for each in (run, alone):
        assert outcome(ended(each)) == ("cancelled", None)
        assert reply_of(each) == "q0 "
    assert not Question.objects.exists()


def test_a_run_that_was_asked_to_stop_does_not_wait(
    start: Start, conversation: Conversation, tmp_path: Path
) -> None:
    """Its worker has not heard of the stop when the question is stored."""
    start(LEASE_SECONDS=120, HEARTBEAT_SECONDS=50)
    run = started(enqueue(conversation, "asking_late", gate=str(tmp_path / "gate")))
    AgentRun.objects.filter(pk=run.pk).update(cancel_requested=True)

    (tmp_path / "gate").touch()

    assert outcome(ended(run)) == ("cancelled", None)
    assert reply_of(run) == "q "
    assert not Question.objects.exists()


def test_a_question_expires_and_the_conversation_goes_on(
    start: Start, conversation: Conversation
) -> None:
    start()
    run = enqueue(conversation, "asking", expires_in=0.5)
    behind = enqueue(conversation, "count", to=1)

    assert outcome(ended(run)) == ("failed", "input_expired")
    assert reply_of(run) == "q0 "
    assert outcome(ended(behind)) == ("completed", None)


def test_an_answer_belongs_to_the_message(start: Start, conversation: Conversation) -> None:
    """Its worker dies after the answer: a retry, whose journal is its own, does not ask again."""
    worker = start()
    run = enqueue(conversation, "asking", stands=True)
    answer_run(waiting(run), "yes")
    started(run, chars=len("q0 yes standing "))
    worker.kill()
    start()
    assert outcome(ended(run)) == ("failed", "worker_lost")
    assert reply_of(run) == "q0 yes standing "

    retry = started(retry_run(run), chars=len("q0 yes standing "))

    assert text_of(retry) == "q0 yes standing "
    with pytest.raises(AlreadyAnswered):
        answer_run(run, "no")


def test_code_that_ignores_the_way_out_keeps_its_slot_and_not_the_run(
    start: Start, conversation: Conversation, tmp_path: Path
) -> None:
    """The run waits, is answered and goes on beside it."""
    gate, trace = tmp_path / "gate", tmp_path / "trace"
    worker = start(CONCURRENCY=2)
    run = enqueue(conversation, "asking_deafly", gate=str(gate), trace=str(trace))
    worker.wait_for_log("ignores its cancellation")
    answer_run(waiting(run), "yes")

    assert outcome(ended(run)) == ("completed", None)
    assert reply_of(run) == "q yes "
    assert lines(trace) == ["swallowed;"]
    gate.touch()
    assert worker.drain() == 0


def answered_through_restarts(start: Start, count: int, *, workers: int) -> None:
    """So many runs wait, on no slot; all workers are killed and started; each is answered."""
    first = [start(CONCURRENCY=20) for _ in range(workers)]
    runs = [enqueue(None, "asking") for _ in range(count)]
    until(lambda: AgentRun.objects.waiting().count() == count, "all to wait", seconds=120)
    assert not AgentRun.objects.running().exists()
    for worker in first:
        worker.kill()
    for _ in range(workers):
        start(CONCURRENCY=20)
    assert AgentRun.objects.waiting().count() == count
    bystander = ended(enqueue(None, "count", to=1))  # more wait than there are slots
    assert outcome(bystander) == ("completed", None)

    for number, run in enumerate(runs):
        answer_run(run, number)

    until(lambda: not AgentRun.objects.active().exists(), "all to end", seconds=120)
    for number, run in enumerate(runs):
        assert outcome(ended(run)) == ("completed", None)
        assert reply_of(run) == f"q0 {number} "


def test_fifty_runs_wait_through_the_death_of_all_workers(start: Start) -> None:
    answered_through_restarts(start, 50, workers=1)


@pytest.mark.soak
def test_a_thousand_runs_wait_through_the_death_of_all_workers(start: Start) -> None:
    answered_through_restarts(start, int(os.environ.get("WAITING_RUNS", "1000")), workers=2)
