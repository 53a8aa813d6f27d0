"""Durable AI agent runs on plain PostgreSQL: a run is a row, not a request.

Everything here is the public API. It is loaded at first use, since models cannot be imported before
Django's app registry is ready.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .agents import Limits, Retry, agent
    from .api import (
        aanswer_run,
        aenqueue_run,
        aenqueue_runs,
        answer_run,
        aretry_run,
        astop_conversation,
        astop_run,
        enqueue_run,
        enqueue_runs,
        retry_run,
        stop_conversation,
        stop_run,
    )
    from .context import BlockingRunContext, RunContext
    from .exceptions import (
        AgentRunsError,
        AlreadyAnswered,
        AnotherQuestion,
        IdempotencyMismatch,
        InvalidAnswer,
        InvalidContent,
        InvalidIdempotencyKey,
        NotADraft,
        NotRetryable,
        NotWaiting,
        OutcomeUnknown,
        QuestionChanged,
        QuestionExpired,
        QueueFull,
        RunStopped,
        UnknownAgent,
    )
    from .models import RunStatus

_HOMES = {
    "agent": "agents",
    "Limits": "agents",
    "Retry": "agents",
    **dict.fromkeys(
        (
            "aanswer_run",
            "answer_run",
            "enqueue_run",
            "enqueue_runs",
            "retry_run",
            "stop_conversation",
            "stop_run",
            "aenqueue_run",
            "aenqueue_runs",
            "aretry_run",
            "astop_conversation",
            "astop_run",
        ),
        "api",
    ),
    **dict.fromkeys(("RunContext", "BlockingRunContext"), "context"),
    **dict.fromkeys(
        (
            "AgentRunsError",
            "AlreadyAnswered",
            "AnotherQuestion",
            "IdempotencyMismatch",
            "InvalidAnswer",
            "InvalidContent",
            "InvalidIdempotencyKey",
            "NotADraft",
            "NotRetryable",
            "NotWaiting",
            "OutcomeUnknown",
            "QuestionChanged",
            "QuestionExpired",
            "QueueFull",
            "RunStopped",
            "UnknownAgent",
        ),
        "exceptions",
    ),
    "RunStatus": "models",
}

__all__ = [
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
]


def __getattr__(name: str) -> Any:
    try:
        home = _HOMES[name]
    except KeyError:
        raise AttributeError(f"module 'agentruns' has no attribute {name!r}") from None
    value = getattr(import_module(f"agentruns.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
