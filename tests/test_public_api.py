"""The names that users build on."""

from __future__ import annotations

import agentruns

PUBLIC = {
    "AgentRunsError",
    "AlreadyAnswered",
    "AnotherQuestion",
    "BlockingRunContext",
    "IdempotencyMismatch",
    "InvalidAnswer",
    "InvalidContent",
    "InvalidIdempotencyKey",
    "Limits",
    "NotADraft",
    "NotRetryable",
    "NotWaiting",
    "OutcomeUnknown",
    "QuestionChanged",
    "QuestionExpired",
    "QueueFull",
    "Retry",
    "RunContext",
    "RunStatus",
    "RunStopped",
    "UnknownAgent",
    "aanswer_run",
    "aenqueue_run",
    "aenqueue_runs",
    "agent",
    "answer_run",
    "aretry_run",
    "astop_conversation",
    "astop_run",
    "enqueue_run",
    "enqueue_runs",
    "retry_run",
    "stop_conversation",
    "stop_run",
}


def test_the_public_names_are_these() -> None:
    assert set(agentruns.__all__) == PUBLIC


def test_every_public_name_can_be_had() -> None:
    for name in PUBLIC:
        assert getattr(agentruns, name) is not None
    assert set(dir(agentruns)) >= PUBLIC


def test_errors_share_one_base_and_a_stop_is_a_cancellation() -> None:
    import asyncio

    errors = [getattr(agentruns, name) for name in PUBLIC - {"RunStopped"} if "Error" in name]

    assert issubclass(agentruns.RunStopped, asyncio.CancelledError)
    assert not issubclass(agentruns.RunStopped, agentruns.AgentRunsError)
    for error in (
        agentruns.UnknownAgent,
        agentruns.InvalidContent,
        agentruns.InvalidIdempotencyKey,
        agentruns.QueueFull,
        agentruns.IdempotencyMismatch,
        agentruns.NotADraft,
        agentruns.NotRetryable,
        *errors,
    ):
        assert issubclass(error, agentruns.AgentRunsError)
