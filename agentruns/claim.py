"""Take runs.

Rung 2: a worker that has slots free takes that many head turns, longest ready first, in one
statement, and journals their start in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any
from uuid import UUID, uuid4

from django.db.models import Exists, OuterRef

from . import db, wake
from .fence import Fence
from .models import AgentRun


@dataclass(frozen=True, slots=True)
class Claimed:
    """A run that this worker holds, with what it takes to start it."""

    fence: Fence
    conversation_id: UUID
    user_id: Any
    user_message_id: UUID
    reply_message_id: UUID
    agent: str
    metadata: dict[str, Any]
    attempt: int
    created_at: datetime
    ready_at: datetime | None
    started_at: datetime
    trace_context: dict[str, str] | None

    @property
    def run_id(self) -> UUID:
        return self.fence.run_id


_COLUMNS = """id, claim_token, conversation_id, user_id, user_message_id, reply_message_id, agent,
    metadata, attempt, created_at, ready_at, started_at, trace_context"""


@lru_cache(maxsize=16)
def _claim_sql(agents: tuple[str, ...]) -> str:
    # A mark beside a running turn is wrong (only a write past the verbs makes one); without the
    # check it would fail every claim of its batch.
    free = ~Exists(AgentRun.objects.running().filter(conversation_id=OuterRef("conversation_id")))
    startable = db.compiled(AgentRun.objects.startable(agents).filter(free).values_list("id"))
    return f"""
    WITH head AS MATERIALIZED ({startable} LIMIT %s FOR NO KEY UPDATE SKIP LOCKED),
    numbered AS (SELECT id, row_number() OVER () AS number FROM head),
    held AS (
        UPDATE agentruns_agentrun run SET
            status = 'running', claim_token = (%s::uuid[])[numbered.number], worker_id = %s::text,
            claim_expires_at = clock_timestamp() + %s::interval, last_heartbeat_at =
                clock_timestamp(), started_at = clock_timestamp()
        FROM numbered WHERE run.id = numbered.id
        RETURNING run.*
    ),
    sent AS (
        UPDATE agentruns_message SET status = 'sent', position = COALESCE(position, (
            SELECT COALESCE(max(said.position), 0) + 1 FROM agentruns_message said WHERE
                said.conversation_id = held.conversation_id))
        FROM held WHERE agentruns_message.id = held.user_message_id
    ),
    superseded AS (
        UPDATE agentruns_message SET status = 'superseded', position = NULL
        FROM held JOIN agentruns_agentrun earlier ON earlier.user_message_id = held.user_message_id
            AND earlier.id <> held.id
        WHERE held.attempt > 1 AND agentruns_message.id = earlier.reply_message_id AND
            agentruns_message.status = 'partial'
    ),
    started AS (
        INSERT INTO agentruns_runevent (run_id, seq, type, payload, created_at)
        SELECT id, 3, 'run_started', jsonb_build_object('attempt', attempt), clock_timestamp() FROM
            held
    ),
    hinted AS ({wake.HINTS})
    SELECT {_COLUMNS}, (SELECT count(*) FROM hinted) FROM held ORDER BY ready_at, id
    """


_ADOPT = f"""
    SELECT {_COLUMNS}, 0 FROM agentruns_agentrun
    WHERE status = 'running' AND claim_token = ANY(%s::uuid[])
"""


def new_tokens(count: int) -> list[UUID]:
    """Tokens for a claim of up to `count` runs. The worker mints them, so it can find what it
    claimed if the answer is lost.
    """
    return [uuid4() for _ in range(count)]


def claim(
    agents: Iterable[str], tokens: Sequence[UUID], worker_id: str, *, lease: timedelta
) -> list[Claimed]:
    """Take up to `len(tokens)` head turns of these agents, in one statement.

    `lease` is how long each claim lives without a heartbeat. An `IntegrityError` means that another
    writer started one of the conversations at the same moment: claim again at once.
    """
    params = [len(tokens), list(tokens), worker_id, lease]
    return _claimed(db.script((_claim_sql(tuple(sorted(agents))), params)))


def adopt(tokens: Sequence[UUID]) -> list[Claimed]:
    """The runs that a claim with these tokens took, where its answer was lost."""
    return _claimed(db.script((_ADOPT, [list(tokens)])))


def _claimed(rows: Iterable[tuple[Any, ...]]) -> list[Claimed]:
    return [
        Claimed(
            fence=Fence(row[0], row[1]),
            conversation_id=row[2],
            user_id=row[3],
            user_message_id=row[4],
            reply_message_id=row[5],
            agent=row[6],
            metadata=json.loads(row[7]),
            attempt=row[8],
            created_at=row[9],
            ready_at=row[10],
            started_at=row[11],
            trace_context=json.loads(row[12]) if row[12] else None,
        )
        for row in rows
    ]
