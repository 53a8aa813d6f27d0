"""Stop means stop.

Rung 8: a stop is a request, written in one transaction that holds the conversation's row. Turns
that have not started are cancelled outright and their messages handed back as drafts; a turn that
waits for an answer ends outright, with what it had said; the running turn gets a flag and a hint,
and its worker ends it. A closed stream is never a stop.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

from django.db.models.functions import Coalesce

from . import db, turns, wake
from .finalize import cancel_queued
from .models import AgentRun, ClockTimestamp, Conversation, Message, RunStatus
from .suspended import end_suspended


@dataclass(frozen=True, slots=True)
class Stopped:
    """What a stop did: runs that it ended, runs that are asked to end, messages handed back."""

    cancelled: list[UUID]
    stopping: list[UUID]
    drafts: list[Message]


def stop_conversation(conversation: Conversation | UUID) -> Stopped:
    """Stop every turn of the conversation; none that was queued when this commits ever starts."""
    conversation_id = conversation.pk if isinstance(conversation, Conversation) else conversation
    return _stop(conversation_id, AgentRun.objects.filter(conversation_id=conversation_id).active())


def stop_run(run: AgentRun | UUID) -> AgentRun:
    """Stop one run; the run as it stands now. One that has ended is left as it is."""
    found: AgentRun = AgentRun.objects.get(pk=run.pk if isinstance(run, AgentRun) else run)
    if not found.has_ended:
        _stop(found.conversation_id, AgentRun.objects.filter(pk=found.pk).active())
        found.refresh_from_db()
    return found


def _stop(conversation_id: UUID, runs: Iterable[AgentRun]) -> Stopped:
    with db.atomic():
        turns.lock_conversations([conversation_id])
        runs = list(runs.order_by("pk").select_for_update(no_key=True, of=("self",)))  # type: ignore[attr-defined]
        running = [run.pk for run in runs if run.status == RunStatus.RUNNING]
        idle = [run for run in runs if run.status != RunStatus.RUNNING]
        # First: the end of a turn promotes the next one that waits.
        draft_ids = cancel_queued(run for run in idle if run.started_at is None)
        for run in idle:
            if run.started_at is not None:
                end_suspended(run, RunStatus.CANCELLED)
        AgentRun.objects.filter(pk__in=running).running().update(
            cancel_requested=True,
            stop_requested_at=Coalesce("stop_requested_at", ClockTimestamp()),
        )
        wake.notify(wake.RUN_STOP, running)
        # One run stopped out of several that wait: the next takes its place.
        turns.promote([conversation_id])
        drafts = Message.objects.filter(pk__in=draft_ids).drafts()
        return Stopped([run.pk for run in idle], running, list(drafts))
