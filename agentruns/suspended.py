"""End runs that no worker holds: those that wait for an answer, and those just answered.

Rung 4: the row lock stands in for the fence, since a claim, an answer and another ending take it
too. What the run had said is all in its journal.
"""

from __future__ import annotations

import logging
from uuid import UUID

from . import db, metrics, turns
from .fence import Fence
from .finalize import end_runs, ending_so_far, failure
from .models import AgentRun, Question, RunStatus

logger = logging.getLogger(__name__)

EXPIRE_BATCH = 100
"""Questions looked at in one statement."""
NO_TOKEN = UUID(int=0)


def end_suspended(run: AgentRun, status: RunStatus, error: dict[str, str] | None = None) -> None:
    """End the run, with what it had said as its reply, and take its question back.

    The caller has locked the conversation and the run, and knows that it is suspended.
    """
    Question.objects.of(run).unanswered().delete()
    ending = ending_so_far(Fence(run.pk, NO_TOKEN), run.conversation_id, status, error)
    end_runs([ending], suspended=True)


def expire_questions() -> int:
    """End every run whose question nobody answered in time; how many. Rows that somebody has
    locked are left to the next sweep.
    """
    expired = 0
    tried: list[UUID] = []
    while True:
        late = Question.objects.late().exclude(run_id__in=tried).order_by("expires_at")
        batch = list(late[:EXPIRE_BATCH])
        expired += sum(map(_expire, batch))
        tried += [question.run_id for question in batch]
        if len(batch) < EXPIRE_BATCH:
            return expired


def _expire(question: Question) -> bool:
    run = AgentRun.objects.filter(pk=question.run_id).first()
    if run is None or run.has_ended:  # by a write past the verbs
        question.delete()
        return False
    with db.atomic():
        waiting = AgentRun.objects.waiting().filter(pk=run.pk)
        held = turns.lock_run(waiting, run.conversation_id)
        if held is None or not Question.objects.late().filter(pk=question.pk).exists():
            return False
        end_suspended(held, RunStatus.FAILED, failure("input_expired"))
    metrics.endings.labels(run.agent, "failed", "input_expired").inc()
    logger.info("run %s: question %r expired", run.pk, question.key)
    return True
