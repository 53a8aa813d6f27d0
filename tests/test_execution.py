"""Why a run ends: the first cause, whatever follows it."""

from __future__ import annotations

import datetime
import itertools
from collections import Counter
from uuid import uuid4

import pytest

from agentruns import agents
from agentruns.agents import LIMIT_NAMES, Agent, Limits, Retry
from agentruns.claim import Claimed
from agentruns.exceptions import RunStopped
from agentruns.execution import Cause, Execution, Outcome, describe
from agentruns.fence import Fence
from agentruns.questions import Past, Question
from agentruns.reply import Reply

ENDINGS = {
    Cause.STOP: ("cancelled", None),
    Cause.TIMEOUT: ("failed", "timeout"),
    Cause.SILENT: ("failed", "silent"),
    Cause.TOKENS: ("failed", "token_limit"),
    Cause.COST: ("failed", "cost_limit"),
    Cause.LEASE_LOST: ("failed", "worker_lost"),
    Cause.SHUTDOWN: ("failed", "worker_shutdown"),
}


@pytest.fixture
def execution() -> Execution:
    claimed = Claimed(
        Fence(uuid4(), uuid4()),
        conversation_id=uuid4(),
        user_id=1,
        user_message_id=uuid4(),
        reply_message_id=uuid4(),
        agent="scripted",
        metadata={},
        attempt=1,
        created_at=datetime.datetime.now(datetime.UTC),
        ready_at=None,
        started_at=datetime.datetime.now(datetime.UTC),
        trace_context=None,
        limits=Limits(),
    )
    return Execution(claimed, Agent("scripted", lambda run: None), lease_until=0.0)


@pytest.mark.parametrize(
    ("error", "repeated"),
    [(ConnectionResetError(), True), (ValueError(), False), (None, False)],
)
def test_only_named_errors_are_repeated(
    execution: Execution, monkeypatch: pytest.MonkeyPatch, error: Exception | None, repeated: bool
) -> None:
    policy = Retry(attempts=2, backoff=3.0, on=(ConnectionError,))
    execution.agent = Agent("scripted", lambda run: None, policy)
    monkeypatch.setitem(agents._agents, "scripted", execution.agent)

    execution.come_back(Outcome.of(error))

    after = execution.compose_ending().retry_after
    assert after == (datetime.timedelta(seconds=3) if repeated else None)


def test_a_run_that_was_told_to_end_is_not_repeated_for_what_it_raised_then(
    execution: Execution, monkeypatch: pytest.MonkeyPatch
) -> None:
    execution.agent = Agent("scripted", lambda run: None, Retry(on=(ConnectionError,)))
    monkeypatch.setitem(agents._agents, "scripted", execution.agent)
    execution.interrupt(Cause.TIMEOUT)

    execution.come_back(Outcome.of(ConnectionResetError()))

    assert execution.compose_ending().retry_after is None


@pytest.mark.parametrize(
    "on", [ConnectionError, [ConnectionError], ("error",), (KeyboardInterrupt,)]
)
def test_what_is_repeated_is_named_by_exception_classes(on: object) -> None:
    with pytest.raises(ValueError, match="tuple of exception classes"):
        Retry(on=on)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        (Limits(tokens=9), "token_limit"),
        (Limits(cost=0.5), "cost_limit"),
        (Limits(tokens=10), None),
    ],
)
def test_what_is_used_is_added_up_and_limited(
    execution: Execution, limits: Limits, code: str | None
) -> None:
    execution.limits = limits

    execution.consume({"input_tokens": 3, "output_tokens": 2, "cost": 0.3})
    assert execution.cause is None
    execution.consume({"input_tokens": 5, "cost": 0.3})

    assert verdict(execution)[1] == code


def test_a_request_lowers_limits_and_raises_none() -> None:
    agents_own = Limits(tokens=10, cost=1.0)

    lowered = agents_own.lowered(Limits.of({"tokens": 20, "cost": 0.5, "run_seconds": 3}))

    assert lowered == Limits(tokens=10, cost=0.5, run_seconds=3)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"token": 1}, "'token', which is no limit; use run_seconds, queue_seconds, silence"),
        ({"tokens": True}, "limits.tokens is True; write a number above 0"),
        ({"cost": float("inf")}, "limits.cost is inf; .* at most 1000000000000000, or leave"),
        ({"cost": float("nan")}, "limits.cost is nan"),
        ({"cost": "1" * 1000}, "limits.cost is '1+\\n… 942 characters left out"),
        ({"run_seconds": -1}, "limits.run_seconds is -1; write a number above 0"),
        ({"queue_seconds": 31622401}, "queue_seconds is 31622401; .* at most 31622400, or"),
    ],
)
def test_what_is_no_limit_is_refused_by_name(given: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Limits.of(given)


def test_silence_is_not_counted_while_code_waits_for_the_database(execution: Execution) -> None:
    assert execution.silence(execution.heard + 7, since=0) == 7
    assert execution.silence(execution.heard + 7, since=execution.heard + 5) == 2

    execution.when_stored(99, lambda stored: None)

    assert execution.silence(execution.heard + 7, since=0) == 0


@pytest.mark.parametrize("name", LIMIT_NAMES)
def test_a_limit_is_above_zero(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is 0; write a number above 0"):
        Limits(**{name: 0})


def verdict(execution: Execution) -> tuple[str, str | None]:
    ending = execution.compose_ending()
    return ending.status.value, ending.error["code"] if ending.error else None


@pytest.mark.parametrize(("first", "second"), list(itertools.product(ENDINGS, repeat=2)))
def test_the_first_cause_is_the_reason(execution: Execution, first: Cause, second: Cause) -> None:
    assert execution.interrupt(first)
    assert not execution.interrupt(second)
    execution.come_back(Outcome.of(RunStopped()))

    assert verdict(execution) == ENDINGS[first]


@pytest.mark.parametrize("cause", ENDINGS)
def test_a_cause_that_comes_after_the_return_changes_nothing(
    execution: Execution, cause: Cause
) -> None:
    execution.come_back(Outcome())

    assert not execution.interrupt(cause)
    assert verdict(execution) == ("completed", None)


def test_an_error_of_code_that_was_stopped_is_no_failure(execution: Execution) -> None:
    execution.interrupt(Cause.STOP)
    execution.come_back(Outcome.of(ValueError("cleaning up failed")))

    assert verdict(execution) == ("cancelled", None)


def test_code_that_cancels_itself_has_failed(execution: Execution) -> None:
    execution.come_back(Outcome.of(RunStopped("by itself")))

    assert verdict(execution) == ("failed", "agent_error")


def test_every_exception_can_be_described() -> None:
    class Unspeakable(BaseException):
        __name__ = property(lambda self: 1 / 0)  # type: ignore[assignment]

        def __str__(self) -> str:
            raise SystemExit

    for error in (Unspeakable(), ValueError("x" * 10_000_000), ValueError("\x00\ud83d")):
        described = describe(error)
        assert described
        assert len(described) < 60_000
        described.encode()
        assert "\x00" not in described


QUESTION = Question("1", "{}", datetime.timedelta(hours=1))


def test_a_run_that_was_told_to_end_asks_nothing(execution: Execution) -> None:
    execution.interrupt(Cause.STOP)

    assert not execution.ask(QUESTION)
    assert execution.asking is None


def test_what_comes_after_a_question_does_not_end_the_run(execution: Execution) -> None:
    execution.ask(QUESTION)

    assert not execution.interrupt(Cause.TIMEOUT)
    assert execution.compose_pause().question is QUESTION


def test_a_run_that_asked_fails_where_what_it_said_is_refused(execution: Execution) -> None:
    execution.ask(QUESTION)
    execution.fail("refused")

    assert execution.asking is None
    assert execution.compose_ending().error == {
        "code": "agent_error",
        "message": "The agent failed.",
    }


def test_what_was_used_before_an_answer_counts(execution: Execution) -> None:
    execution.limits = Limits(tokens=10)
    execution.has_past = False

    execution.remember(Past(Reply(), [{"input_tokens": 6}, {"output_tokens": 5}], "1"))

    assert execution.cause is Cause.TOKENS
    assert execution.replays_to == "1"


def test_what_is_no_number_counts_nothing(execution: Execution) -> None:
    execution.consume({"input_tokens": None, "output_tokens": "9", "cost": True})
    execution.consume({"input_tokens": 2, "output_tokens": None})

    assert (execution.tokens, execution.cost) == (2, 0)


def test_a_tool_call_is_said_again_as_often_as_it_is_journaled(execution: Execution) -> None:
    started, finished = ("tool_call_started", "a"), ("tool_call_finished", "a")
    execution.has_past = False
    execution.remember(Past(Reply(), [], "1", Counter([started, started, finished])))

    said = [execution.repeats_call(*event) for event in (started, finished, started, finished)]

    assert said == [True, True, True, False]
    assert not execution.repeats_call("tool_call_started", "b")
