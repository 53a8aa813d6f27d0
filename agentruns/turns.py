"""Whose turn it is in a conversation.

Rung 7: the head turn of an idle conversation carries the mark that it may start (`ready_at`), so
that claims never look at turns that wait. The mark is set by enqueue where the conversation is idle
and handed on by whatever ends a turn. All who change a conversation's turns lock its row first:
enqueue and the end of a turn cannot pass each other.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from . import db, wake
from .models import AgentRun, AgentRunQuerySet, Conversation

# The head of `idle.conversation_id`: its first waiting turn.
HEAD = """
    SELECT waiting.id FROM agentruns_agentrun waiting
    WHERE waiting.conversation_id = idle.conversation_id AND waiting.status = 'queued'
    ORDER BY waiting.turn, waiting.attempt, waiting.id LIMIT 1
"""

# As scalars these are a probe for each conversation: NOT EXISTS may become a join with everything
# that runs or waits.
_HOLDING = """
    SELECT other.id FROM agentruns_agentrun other
    WHERE other.conversation_id = idle.conversation_id AND
        other.status IN ('running', 'waiting') LIMIT 1
"""

_PROMOTE = f"""
WITH head AS (
    SELECT ({HEAD}) AS id FROM unnest(%s::uuid[]) AS idle(conversation_id)
    WHERE ({_HOLDING}) IS NULL
)
UPDATE agentruns_agentrun SET ready_at = clock_timestamp() FROM head
WHERE agentruns_agentrun.id = head.id AND agentruns_agentrun.status = 'queued' AND
    agentruns_agentrun.ready_at IS NULL
RETURNING agentruns_agentrun.id
"""

# Walks the index of waiting turns from conversation to conversation, so the cost is that of the
# conversations, not of their turns.
_UNMARKED = f"""
WITH RECURSIVE idle AS (
    SELECT (SELECT conversation_id FROM agentruns_agentrun WHERE status = 'queued' AND
        conversation_id > %s
            ORDER BY conversation_id LIMIT 1) AS conversation_id, 1 AS step
    UNION ALL
    SELECT (SELECT conversation_id FROM agentruns_agentrun WHERE status = 'queued' AND
        conversation_id > idle.conversation_id
            ORDER BY conversation_id LIMIT 1), step + 1
    FROM idle WHERE idle.conversation_id IS NOT NULL AND step < %s
)
SELECT conversation_id, ({_HOLDING}) IS NULL AND (SELECT head.ready_at FROM agentruns_agentrun head
    WHERE head.id = ({HEAD})) IS NULL
FROM idle WHERE conversation_id IS NOT NULL
"""


def lock_conversations(conversation_ids: Iterable[UUID], *, skip_locked: bool = False) -> set[UUID]:
    """Lock the conversations' rows, in id order, until the transaction ends; which ones were
    locked.
    """
    rows = Conversation.objects.filter(pk__in=list(conversation_ids)).order_by("pk")
    return set(
        rows.select_for_update(no_key=True, skip_locked=skip_locked).values_list("pk", flat=True)
    )


def lock_run(run: AgentRunQuerySet, conversation_id: UUID) -> AgentRun | None:
    """Lock the conversation, then its run that the query finds, until the transaction ends; the
    run, or None where it is not found or somebody has either row locked.

    A last flush of the run's worker is kept out while the text so far is read.
    """
    if not lock_conversations([conversation_id], skip_locked=True):
        return None
    return run.select_for_update(no_key=True, skip_locked=True, of=("self",)).first()


def promote(conversation_ids: Iterable[UUID]) -> list[UUID]:
    """Mark the head turn of each of these conversations that is idle, and wake a worker; the runs
    that were marked.

    The caller has locked the conversations.
    """
    with db.connection().cursor() as cursor:
        cursor.execute(_PROMOTE, [list(conversation_ids)])
        promoted = [run_id for (run_id,) in cursor.fetchall()]
    wake.notify(wake.RUN_READY, promoted)
    return promoted


def heal(after: UUID, *, limit: int) -> tuple[int, UUID]:
    """Promote in conversations that stand still with turns waiting: a promotion was lost.

    Looks at up to `limit` conversations whose id is above `after`; how many turns were promoted,
    and where to go on (zero at the end).
    """
    with db.connection().cursor() as cursor:
        cursor.execute(_UNMARKED, [after, limit])
        seen = cursor.fetchall()
    unmarked = [conversation_id for conversation_id, still in seen if still]
    healed = 0
    if unmarked:
        with db.atomic():
            healed = len(promote(lock_conversations(unmarked, skip_locked=True)))
    return healed, seen[-1][0] if len(seen) == limit else UUID(int=0)
