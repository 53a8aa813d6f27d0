"""Take runs.

Rung 2: a worker that has slots free takes that many head turns, longest ready first, in one
statement, and journals their start in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any
from uuid import UUID, uuid4

from django.db.models import OuterRef, Subquery
from django.db.models.expressions import RawSQL
from django.db.models.functions import Now

from . import db, wake
from .agents import Limits
from .fence import Fence
from .journal import FIRST_SEQ
from .models import AgentRun
from .text import array


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
    limits: Limits
    """What the request allows the run to take."""
    answered_seq: int | None = None
    """Seq of the newest answer that it was given; None: it starts for the first time."""

    @property
    def next_seq(self) -> int:
        """Seq of the worker's first event."""
        return FIRST_SEQ if self.answered_seq is None else self.answered_seq + 2

    @property
    def run_id(self) -> UUID:
        return self.fence.run_id


BEGINNING = "-infinity"


@dataclass(slots=True)
class Mark:
    """Where one worker's next claim begins to look: whatever became ready before this is taken, is
    not its to take, or is named by a hint.

    Entries of claimed runs stay in the index for as long as any transaction is open that began
    before the claim; each claim would walk over all of them again. What the mark hides (a hint was
    lost, a rival's claim was rolled back) is found by a claim from the beginning, which every poll
    makes.
    """

    since: str = BEGINNING
    """Text of a timestamp, by the database's clock."""
    woken: list[UUID] = field(default_factory=list)
    """The runs that hints named since the last claim: a long transaction may have made one ready
    before the mark.
    """
    due_in: float | None = None
    """Seconds from the last claim, where it left nothing to take, to the moment at which the next
    delayed run may start; None: none waits for its time.
    """

    def forget(self) -> None:
        """Begin at the beginning."""
        self.since = BEGINNING
        self.woken = []


_COLUMNS = """id, claim_token, conversation_id, user_id, user_message_id, reply_message_id, agent,
    metadata, attempt, created_at, ready_at, started_at, trace_context, limits, answered_seq"""


@lru_cache(maxsize=16)
def _claim_sql(agents: tuple[str, ...]) -> str:
    # A mark beside a turn that runs or waits is wrong (only a write past the verbs makes one);
    # without the check it would fail every claim of its batch. As a scalar it is a probe for each
    # head: NOT EXISTS may become a join with all that run, and a sort of all heads after it.
    holding = AgentRun.objects.holding().filter(conversation_id=OuterRef("conversation_id"))
    startable = db.compiled(
        AgentRun.objects.startable(agents)
        .alias(rival=Subquery(holding.values("pk")[:1]))
        .filter(rival=None, ready_at__gte=RawSQL("(SELECT since FROM low)", ()))
        .values_list("id", "ready_at")
    )
    delayed = db.compiled(
        AgentRun.objects.marked()
        .filter(ready_at__gt=Now(), agent__in=list(agents))
        .order_by("ready_at")
        .values_list("ready_at")[:1]
    )
    return f"""
    WITH low AS (
        SELECT LEAST(%s::timestamptz, (SELECT min(woken.ready_at) FROM agentruns_agentrun woken
            WHERE woken.id = ANY(%s::uuid[]))) AS since
    ),
    head AS MATERIALIZED ({startable} LIMIT %s FOR NO KEY UPDATE SKIP LOCKED),
    numbered AS (SELECT id, row_number() OVER () AS number FROM head),
    held AS (
        UPDATE agentruns_agentrun run SET
            status = 'running', claim_token = (%s::uuid[])[numbered.number], worker_id = %s::text,
            claim_expires_at = clock_timestamp() + %s::interval, last_heartbeat_at =
                clock_timestamp(), started_at = COALESCE(run.started_at, clock_timestamp())
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
        SELECT id, COALESCE(answered_seq + 1, 3), CASE WHEN answered_seq IS NULL THEN 'run_started'
            ELSE 'run_resumed' END, jsonb_build_object('attempt', attempt), clock_timestamp()
        FROM held
    ),
    hinted AS ({wake.HINTS})
    SELECT {_COLUMNS}, (SELECT count(*) FROM hinted),
        CASE WHEN (SELECT count(*) FROM head) < %s
            THEN extract(epoch FROM ({delayed}) - statement_timestamp())::float8 END,
        CASE WHEN (SELECT count(*) FROM head) < %s
            THEN statement_timestamp() ELSE (SELECT max(ready_at) FROM head) END::text
    FROM (SELECT) always LEFT JOIN held ON true ORDER BY ready_at, id
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
    agents: Iterable[str],
    tokens: Sequence[UUID],
    worker_id: str,
    *,
    lease: timedelta,
    mark: Mark | None = None,
) -> list[Claimed]:
    """Take up to `len(tokens)` head turns of these agents, in one statement.

    `lease` is how long each claim lives without a heartbeat. With a `mark`, only what became ready
    since then is looked at, and the mark is moved on. An `IntegrityError` means that another writer
    started one of the conversations at the same moment: claim again at once.
    """
    mark = mark or Mark()
    count = len(tokens)
    # An empty list as a constant implies every condition: the planner would take any partial index.
    woken = array(mark.woken) if mark.woken else None
    minted = array(tokens)
    params = [mark.since, woken, count, minted, worker_id, lease, count, count]
    rows = db.script((_claim_sql(tuple(sorted(agents))), params))
    mark.due_in, mark.since = rows[0][-2:]
    return _claimed(row for row in rows if row[0] is not None)


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
            limits=Limits.kept(json.loads(row[13]) if row[13] else None),
            answered_seq=row[14],
        )
        for row in rows
    ]
