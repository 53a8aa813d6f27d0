"""What `run.once` keeps, and behind which fence."""

from __future__ import annotations

from uuid import uuid4

import pytest

from agentruns.exceptions import OutcomeUnknown, Superseded
from agentruns.fence import Fence
from agentruns.models import AgentRun, RunStatus, Step
from agentruns.steps import Attempt, Done, begin, finish, key, storable, withdraw
from agentruns.text import check_name

from .factories import AgentRunFactory

pytestmark = pytest.mark.django_db


@pytest.fixture
def run() -> AgentRun:
    return AgentRunFactory(running=True)


def attempt_of(run: AgentRun, name: str = "charge") -> Attempt:
    return Attempt(Fence(run.pk, run.claim_token), run.user_message_id, name)


def test_a_step_that_is_done_is_answered_from_its_row(run: AgentRun) -> None:
    first = attempt_of(run)
    assert begin(first) is None
    finish(first, {"id": 7})

    assert begin(attempt_of(run)) == Done({"id": 7})


def test_a_step_that_began_and_is_not_done_is_refused(run: AgentRun) -> None:
    begin(attempt_of(run))

    with pytest.raises(OutcomeUnknown, match=r"'charge'.*may have taken effect"):
        begin(attempt_of(run))


def test_a_beginning_whose_answer_was_lost_is_known_as_its_own(run: AgentRun) -> None:
    attempt = attempt_of(run)
    begin(attempt)

    assert begin(attempt) is None


def test_a_step_that_was_never_called_is_withdrawn(run: AgentRun) -> None:
    attempt = attempt_of(run)
    begin(attempt)
    withdraw(attempt)

    assert begin(attempt_of(run)) is None


def test_a_call_withdraws_no_other_calls_step(run: AgentRun) -> None:
    begin(attempt_of(run))
    withdraw(attempt_of(run))

    assert Step.objects.count() == 1


@pytest.mark.parametrize("verb", [begin, withdraw, lambda attempt: finish(attempt, 1)])
def test_a_superseded_worker_writes_no_step(run: AgentRun, verb) -> None:  # type: ignore[no-untyped-def]
    stale = Attempt(Fence(run.pk, uuid4()), run.user_message_id, "charge")

    with pytest.raises(Superseded):
        verb(stale)

    assert not Step.objects.exists()


def test_an_ended_run_takes_no_step(run: AgentRun) -> None:
    AgentRun.objects.filter(pk=run.pk).update(status=RunStatus.FAILED, finished_at=run.started_at)

    with pytest.raises(Superseded):
        begin(attempt_of(run))


def test_a_key_is_the_messages_and_the_steps() -> None:
    one, other = uuid4(), uuid4()

    assert key(one, "a") == key(one, "a")
    assert len({key(one, "a"), key(one, "b"), key(other, "a")}) == 3


def test_a_result_is_what_json_makes_of_it() -> None:
    assert storable("s", (1, "nul \x00")) == [1, "nul \ufffd"]
    with pytest.raises(ValueError, match="result of step 's'"):
        storable("s", object())


@pytest.mark.parametrize("name", ["", "x" * 201, "nul \x00", 7])
def test_a_name_that_no_column_takes_is_refused(name: object) -> None:
    with pytest.raises(ValueError, match="1 to 200 characters"):
        check_name(name, "a step's name")
