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
        aenqueue_run,
        aenqueue_runs,
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
        IdempotencyMismatch,
        InvalidContent,
        InvalidIdempotencyKey,
        NotADraft,
        NotRetryable,
        OutcomeUnknown,
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
            "IdempotencyMismatch",
            "InvalidContent",
            "InvalidIdempotencyKey",
            "NotADraft",
            "NotRetryable",
            "OutcomeUnknown",
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
    "BlockingRunContext",
    "IdempotencyMismatch",
    "InvalidContent",
    "InvalidIdempotencyKey",
    "Limits",
    "NotADraft",
    "NotRetryable",
    "OutcomeUnknown",
    "QueueFull",
    "Retry",
    "RunContext",
    "RunStatus",
    "RunStopped",
    "UnknownAgent",
    "aenqueue_run",
    "aenqueue_runs",
    "agent",
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
