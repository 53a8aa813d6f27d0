"""Run a turn again, because a person asked for it.

A retry is a new run of the same message, in the place of the turn that it retries. Nothing is
retried by itself, except agents declared so.
"""

from __future__ import annotations

from uuid import UUID

from . import db, tracing, turns
from .exceptions import NotRetryable
from .models import AgentRun, RunEvent, RunStatus


def retry_run(run: AgentRun | UUID) -> AgentRun:
    """Enqueue a new run of the same message; the new run.

    Raises `NotRetryable` unless `run` failed, or was stopped after it had started, and is its
    conversation's latest turn; turns that were cancelled before they started don't count.
    """
    run_id = run.pk if isinstance(run, AgentRun) else run
    conversation_id = AgentRun.objects.values_list("conversation_id", flat=True).get(pk=run_id)
    with db.atomic():
        turns.lock_conversations([conversation_id])
        failed: AgentRun = AgentRun.objects.get(pk=run_id)
        _check(failed)
        retry: AgentRun = AgentRun.objects.create(
            conversation_id=failed.conversation_id,
            user_id=failed.user_id,
            user_message_id=failed.user_message_id,
            retry_of=failed,
            agent=failed.agent,
            input=failed.input,
            metadata=failed.metadata,
            limits=failed.limits,
            turn=failed.turn,
            attempt=failed.attempt + 1,
            trace_context=tracing.current(),
        )
        message = {"message_id": str(failed.user_message_id)}
        queued = {"run_id": str(retry.pk)}
        RunEvent.objects.bulk_create(
            [
                RunEvent(run=retry, seq=1, type="user_message_created", payload=message),
                RunEvent(run=retry, seq=2, type="run_queued", payload=queued),
            ]
        )
        turns.promote([conversation_id])
        retry.refresh_from_db()
    return retry


def _check(run: AgentRun) -> None:
    stopped = run.status == RunStatus.CANCELLED and run.started_at is not None
    if run.status != RunStatus.FAILED and not stopped:
        raise NotRetryable(
            f"Run {run.pk} is {run.status}; only a run that failed, or was stopped after it had "
            "started, can be retried."
        )
    latest = (
        AgentRun.objects.filter(conversation_id=run.conversation_id)
        .exclude(status=RunStatus.CANCELLED, started_at__isnull=True)
        .order_by("-turn", "-attempt", "-pk")
        .first()
    )
    if latest is not None and latest.pk != run.pk:
        raise NotRetryable(
            f"Run {run.pk} is not its conversation's latest turn; run {latest.pk} is."
        )
