"""Every way of standing still, staged, and the sentence that names it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import timedelta
from io import StringIO
from typing import Any
from uuid import uuid4

import pytest
from django.conf import settings
from django.core.management import call_command
from django.db import connection
from django.test import override_settings

from agentruns.models import AgentRun
from agentruns.why import Reason, explain
from tests.factories import AgentRunFactory, QuestionFactory, journal, now

pytestmark = pytest.mark.django_db


def ago(seconds: float) -> Any:
    return now() - timedelta(seconds=seconds)


def ready(**given: Any) -> AgentRun:
    """A queued run that is its conversation's next turn."""
    return AgentRunFactory(**{"ready_at": ago(2), **given})


def why(run: AgentRun) -> Reason:
    return explain(run.pk)


UNITS = {"d": 86400, "h": 3600, "min": 60, "s": 1}
SPAN = re.compile(r"\b\d+ (?:d|h|min|s)\b(?: \d+ (?:d|h|min|s)\b)*")
SLACK = 20
"""Seconds that a busy machine may take between a row and the look at it."""


def seconds(span: str) -> int:
    return sum(int(number) * UNITS[unit] for number, unit in re.findall(r"(\d+) (\w+)", span))


def reads(found: str, expected: str) -> bool:
    """Whether `found` holds the expected words, its times off by no more than a test takes."""
    pattern = f"({SPAN.pattern})".join(map(re.escape, SPAN.split(expected)))
    match = re.search(pattern, found)
    assert match is not None, found
    wanted = SPAN.findall(expected)
    assert all(
        abs(seconds(time) - seconds(want)) <= SLACK
        for time, want in zip(match.groups(), wanted, strict=True)
    ), found
    return True


# Queued


def test_a_turn_behind_a_running_one_names_it_and_says_what_that_does(worker: Any) -> None:
    worker()
    running = AgentRunFactory(running=True, started_at=ago(65))
    waiting = AgentRunFactory(conversation=running.conversation)

    reason = why(waiting)

    assert reason.code == "behind_running"
    assert reads(
        reason.sentence,
        (
            f"Run {waiting.pk} waits behind run {running.pk} of its conversation, which has been "
            "running on worker host:1:test for 1 min 5 s; its lease has 30 s left."
        ),
    )


def test_a_turn_behind_a_waiting_one_names_it_and_why_that_waits() -> None:
    first = ready()
    second = AgentRunFactory(conversation=first.conversation, turn=first.turn + 1)

    reason = why(second)

    assert reason.code == "behind_queued"
    assert reads(
        reason.predicate,
        f"waits behind run {first.pk}, an earlier turn of its conversation, which has been ready",
    )
    assert "no worker is alive" in reason.predicate


def test_a_turn_behind_a_lost_run_says_that_the_sweep_comes(worker: Any) -> None:
    worker()
    lost = AgentRunFactory(expired=True)
    waiting = AgentRunFactory(conversation=lost.conversation)

    assert "the next sweep ends it as worker_lost, within about 5 s" in why(waiting).sentence


def test_a_lost_promotion_is_marked_by_the_next_sweep(worker: Any) -> None:
    worker()
    unmarked = AgentRunFactory()

    reason = why(unmarked)

    assert reason.code == "promotion_lost"
    assert "the next sweep marks it, within about 5 s" in reason.sentence


def test_a_lost_promotion_without_a_sweeper_says_what_to_do(worker: Any) -> None:
    worker(reaps=False)

    reason = why(AgentRunFactory())

    assert reason.code == "promotion_lost"
    assert "no live worker sweeps: start one, or run `manage.py reap --once`" in reason.sentence


def test_a_delayed_run_says_when_it_may_start_and_what_it_retries() -> None:
    failed = AgentRunFactory(failed=True)
    delayed = AgentRunFactory(
        conversation=failed.conversation,
        retry_of=failed,
        attempt=2,
        ready_at=now() + timedelta(seconds=90),
    )

    reason = why(delayed)

    assert reason.code == "delayed"
    assert reads(
        reason.predicate, (f"is delayed: it may start in 1 min 30 s (it retries run {failed.pk})")
    )


def test_no_worker_is_alive_and_none_was_seen() -> None:
    reason = why(ready())

    assert reason.code == "no_worker"
    assert reads(
        reason.predicate,
        ("has been ready for 2 s, and no worker is alive (none was seen within the last hour)"),
    )


def test_no_worker_is_alive_and_the_last_one_is_named(worker: Any) -> None:
    worker(worker_id="host:9:gone", lifetime=timedelta(0))

    reason = why(ready())

    assert reason.code == "no_worker"
    assert reads(reason.predicate, "(the last one, host:9:gone, was seen 0 s ago)")


def test_no_live_worker_knows_the_agent(worker: Any) -> None:
    worker(agents=["other", "third"])

    reason = why(ready())

    assert reason.code == "no_worker_for_agent"
    assert reads(
        reason.predicate,
        (
            "has been ready for 2 s, and no live worker knows agent 'assistant' "
            "(they know: other, third)"
        ),
    )


def test_an_agent_that_was_renamed_is_not_registered_anywhere(worker: Any) -> None:
    worker()

    reason = why(ready(agent="old-name"))

    assert reason.code == "no_worker_for_agent"
    assert reason.predicate.endswith("(they know: assistant), nor is it registered here")


def test_every_worker_is_draining(worker: Any) -> None:
    worker(draining=True)

    reason = why(ready())

    assert reason.code == "workers_draining"
    assert reason.predicate.endswith("that knows agent 'assistant' is draining: host:1:test")


def test_all_slots_are_taken_and_others_are_ahead(worker: Any) -> None:
    worker(slots=1)
    AgentRunFactory(running=True)
    ready(ready_at=ago(10))
    ready(ready_at=ago(9))

    reason = why(ready())

    assert reason.code == "workers_full"
    assert reads(
        reason.predicate,
        (
            "has been ready for 2 s, and all 1 slots of the live workers that know agent "
            "'assistant' are taken; 2 ready runs are ahead of it"
        ),
    )


def test_slots_are_taken_by_code_whose_run_has_ended(worker: Any) -> None:
    worker(slots=2, busy=2)

    reason = why(ready())

    assert reason.code == "slots_stuck"
    assert "by code that has not returned though its run has ended" in reason.predicate


def test_a_run_that_just_became_ready_is_about_to_start(worker: Any) -> None:
    worker()

    reason = why(ready())

    assert reason.code == "about_to_start"
    assert reads(
        reason.predicate,
        (
            "has been ready for 2 s, and a live worker with a free slot claims it within 10 s; "
            "no ready run is ahead of it"
        ),
    )


def test_a_run_that_free_workers_leave_standing(worker: Any) -> None:
    worker()

    reason = why(ready(ready_at=ago(60)))

    assert reason.code == "not_claimed"
    assert reads(reason.predicate, "has been ready for 1 min beside free slots")


def test_a_run_whose_row_is_locked_names_the_session(
    worker: Any, held_row: Callable[[str, Any], int]
) -> None:
    worker()
    locked = ready()
    pid = held_row("agentruns_agentrun", locked.pk)

    reason = why(locked)

    assert reason.code == "row_locked"
    assert f"its row is locked by session {pid}, idle in transaction" in reason.predicate


def test_a_lost_promotion_behind_a_locked_conversation(
    worker: Any, held_row: Callable[[str, Any], int]
) -> None:
    worker()
    unmarked = AgentRunFactory()
    pid = held_row("agentruns_conversation", unmarked.conversation_id)

    reason = why(unmarked)

    assert reason.code == "conversation_locked"
    assert f"locked by session {pid}" in reason.predicate


def test_a_read_only_database_takes_no_claims(worker: Any) -> None:
    worker()
    standing = ready()
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL default_transaction_read_only = on")

    reason = why(standing)

    assert reason.code == "database_read_only"
    assert "the database is read-only: nothing can be claimed" in reason.predicate


# Running


def test_a_stop_that_is_under_way_says_how_long_ago_it_was_asked_for() -> None:
    stopping = AgentRunFactory(running=True, cancel_requested=True, stop_requested_at=ago(3))

    reason = why(stopping)

    assert reason.code == "stopping"
    assert reads(
        reason.predicate,
        "was asked to stop 3 s ago, and worker host:1:test ends it: at its code's next await",
    )


def test_a_stop_that_is_overdue_points_at_the_log() -> None:
    overdue = AgentRunFactory(running=True, cancel_requested=True, stop_requested_at=ago(60))

    assert why(overdue).code == "stop_overdue"


def test_a_lease_that_has_lapsed_says_when_the_run_is_ended() -> None:
    lapsed = AgentRunFactory(running=True, claim_expires_at=ago(10), last_heartbeat_at=ago(40))

    reason = why(lapsed)

    assert reason.code == "lease_lapsed"
    assert reads(
        reason.predicate,
        (
            "has not been renewed by worker host:1:test for 40 s: its lease lapsed 10 s ago, and "
            "unless that worker comes back the first sweep after 20 s ends it as worker_lost"
        ),
    )


def test_a_lost_run_without_a_sweeper_says_what_to_do() -> None:
    lost = AgentRunFactory(expired=True)

    reason = why(lost)

    assert reason.code == "lost"
    assert "no live worker sweeps" in reason.predicate


def test_a_lost_run_whose_row_is_locked_is_stepped_over(
    worker: Any, held_row: Callable[[str, Any], int]
) -> None:
    worker()
    lost = AgentRunFactory(expired=True)
    pid = held_row("agentruns_agentrun", lost.pk)

    reason = why(lost)

    assert reason.code == "lost_and_locked"
    assert f"session {pid}" in reason.predicate


def test_a_running_run_whose_row_is_locked(held_row: Callable[[str, Any], int]) -> None:
    running = AgentRunFactory(running=True)
    pid = held_row("agentruns_agentrun", running.pk)

    reason = why(running)

    assert reason.code == "running_locked"
    assert f"locked by session {pid}" in reason.predicate


def test_a_worker_that_missed_a_beat() -> None:
    missed = AgentRunFactory(
        running=True, last_heartbeat_at=ago(20), claim_expires_at=now() + timedelta(seconds=10)
    )

    reason = why(missed)

    assert reason.code == "beat_missed"
    assert reads(reason.predicate, "that worker has not beaten for 20 s; its lease has 10 s left")


@override_settings(AGENTRUNS={"RUN_TIMEOUT_SECONDS": 60})
def test_a_run_past_its_timeout_is_being_ended() -> None:
    old = AgentRunFactory(running=True, started_at=ago(61))

    reason = why(old)

    assert reason.code == "timed_out"
    assert "longer than RUN_TIMEOUT_SECONDS (60 s) allows, and that worker is ending it" in (
        reason.predicate
    )


def test_a_run_past_the_time_that_its_request_gives_it() -> None:
    old = AgentRunFactory(running=True, started_at=ago(58), limits={"run_seconds": 9})
    very_old = AgentRunFactory(running=True, started_at=ago(58), limits={"run_seconds": 0.5})

    with override_settings(AGENTRUNS={**settings.AGENTRUNS, "STOP_GRACE_SECONDS": 27}):
        reasons = [why(old), why(very_old)]

    assert {reason.code for reason in reasons} == {"timed_out"}
    assert "than its run_seconds (9 s) allows, and that worker is ending it" in reasons[0].predicate
    assert "its worker has not ended it; the next sweep ends it" in reasons[1].predicate


def test_a_run_past_its_time_in_queue_is_not_claimed() -> None:
    reason = why(ready(ready_at=ago(50), limits={"queue_seconds": 20}))

    assert reason.code == "queue_overdue"
    assert reads(
        reason.predicate,
        "has been ready for 50 s, longer than its queue_seconds (20 s) allows, and is not claimed",
    )
    assert why(ready(limits={"queue_seconds": 60})).code == "no_worker"


def test_a_run_on_a_draining_worker(worker: Any) -> None:
    worker(draining=True)

    reason = why(AgentRunFactory(running=True))

    assert reason.code == "draining"
    assert "ends it as worker_shutdown unless it ends within the drain's budget" in reason.predicate


def test_an_agent_that_has_said_nothing_for_long(worker: Any) -> None:
    worker()
    silent = AgentRunFactory(running=True, started_at=ago(120))
    journal(silent, ("run_started", {"attempt": 1}))
    with connection.cursor() as cursor:  # the journal's rows cannot be changed, but replaced
        cursor.execute("DELETE FROM agentruns_runevent WHERE seq = 3")
        cursor.execute(
            "INSERT INTO agentruns_runevent (run_id, seq, type, payload, created_at)"
            " VALUES (%s, 3, 'run_started', '{}', %s)",
            [silent.pk, ago(120)],
        )

    reason = why(silent)
    AgentRun.objects.update(limits={"silence_seconds": 90})
    limited = why(silent)

    assert limited.code == "silent_too_long"
    assert "longer than its silence_seconds (90 s) allows" in limited.predicate
    assert reason.code == "silent"
    assert reads(reason.predicate, "has said nothing for 2 min (last event: run_started, seq 3)")


def test_a_run_at_work_is_not_standing_still(worker: Any) -> None:
    worker()
    at_work = AgentRunFactory(running=True)
    journal(at_work, ("run_started", {"attempt": 1}))

    reason = why(at_work)

    assert reason.code == "running"
    assert reads(reason.predicate, "is at work (last event: run_started, seq 3, 0 s ago)")


# Ended, and the command


def test_a_failed_run_names_its_code_and_its_retry() -> None:
    failed = AgentRunFactory(failed=True, finished_at=ago(5))
    retry = AgentRunFactory(conversation=failed.conversation, retry_of=failed, attempt=2)

    assert reads(
        why(failed).predicate,
        (
            "failed 5 s ago with agent_error («The agent failed.»); "
            f"run {retry.pk} (queued) retries it"
        ),
    )


@pytest.mark.parametrize(
    ("trait", "words"),
    [("ended", "completed"), ("stopped", "was stopped 0"), ("cancelled", "before it started")],
)
def test_an_ended_run_says_how(trait: str, words: str) -> None:
    assert words in why(AgentRunFactory(**{trait: True})).predicate


def test_the_command_prints_the_sentence_and_json() -> None:
    run = ready()
    out, as_json = StringIO(), StringIO()

    call_command("agentruns", "why", str(run.pk), stdout=out)
    call_command("agentruns", "why", str(run.pk), "--json", stdout=as_json)

    assert reads(out.getvalue(), f"Run {run.pk} has been ready for 2 s")
    assert json.loads(as_json.getvalue())["reason"] == "no_worker"


def test_the_command_fails_for_a_run_that_does_not_exist() -> None:
    out = StringIO()

    with pytest.raises(SystemExit):
        call_command("agentruns", "why", str(uuid4()), stdout=out)

    assert "does not exist" in out.getvalue()


# Waiting for an answer


def test_a_run_that_asked_says_what_and_until_when(worker: Any) -> None:
    worker()
    run = AgentRunFactory(waiting=True)
    QuestionFactory(run=run, key="refund", asked_at=ago(120))
    behind = AgentRunFactory(conversation=run.conversation)

    assert why(run).code == "waiting"
    assert reads(
        why(run).sentence,
        "has waited for a person's answer to question 'refund' for 2 min; it takes no worker, and "
        "fails as input_expired unless it is answered within 1 h.",
    )
    assert why(behind).code == "behind_waiting"


def test_a_question_whose_time_is_over_waits_for_a_sweep(worker: Any) -> None:
    worker(reaps=True)
    run = AgentRunFactory(waiting=True)
    QuestionFactory(run=run, late=True)

    assert why(run).code == "question_expired"
    assert "too long; the next sweep ends it" in why(run).sentence


def test_a_question_that_was_deleted_is_named() -> None:
    assert why(AgentRunFactory(waiting=True)).code == "question_missing"


def test_an_answered_run_is_never_overdue(worker: Any) -> None:
    """It started in time: its queue_seconds are over and done with."""
    worker()
    run = AgentRunFactory(waiting=True, limits={"queue_seconds": 1})
    AgentRun.objects.filter(pk=run.pk).update(status="queued", ready_at=ago(5), answered_seq=5)

    assert why(run).code == "about_to_start"
