"""Hold runs to their limits, where no worker does.

Rung 3. A run that stood ready for longer than it may is never claimed any more: sweeps end these. A
run that runs is held to its limits by its worker; where that beats and does not end the run for a
grace past a limit, a sweep does. It goes by what is stored: the run's row, its journal, and the
limits that this process knows of its agent.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from django.db.models import F

from . import db, metrics, turns
from .agents import Limits, declared_limits
from .fence import Fence
from .finalize import end_runs, fail_queued, failure_so_far
from .journal import Standing
from .models import AgentRun, ClockTimestamp, RunEvent

logger = logging.getLogger(__name__)

BATCH = 100
"""Runs that waited for too long, ended in one transaction."""


def limits_of(run: AgentRun) -> Limits:
    """What this run may take: the lower of its request's limits and those that this process knows
    of its agent.
    """
    return declared_limits().get(run.agent, Limits()).lowered(Limits.kept(run.limits))


def end_overdue() -> int:
    """End every run that stood ready for longer than it may, as `queue_timeout`; how many."""
    ended = 0
    tried: set[UUID] = set()
    while True:
        overdue = AgentRun.objects.overdue().exclude(pk__in=tried)
        batch = list(overdue.values_list("pk", "conversation_id")[:BATCH])
        tried.update(run_id for run_id, _ in batch)
        if batch:
            ended += _fail(batch)
        if len(batch) < BATCH:
            return ended


def _fail(batch: list[tuple[UUID, UUID]]) -> int:
    with db.atomic():
        places = turns.lock_conversations((place for _, place in batch), skip_locked=True)
        overdue = AgentRun.objects.overdue().filter(
            pk__in=[run_id for run_id, _ in batch], conversation_id__in=places
        )
        # A claim may hold one: then it started in time.
        held = overdue.select_for_update(no_key=True, skip_locked=True, of=("self",))
        runs = list(held.only("pk", "agent", "conversation_id"))
        ended = fail_queued(runs, "queue_timeout")
        turns.promote(run.conversation_id for run in runs)
    for run in runs:
        metrics.endings.labels(run.agent, "failed", "queue_timeout").inc()
    if ended:
        logger.warning(
            "ended %s: ready for longer than their limit", ", ".join(f"run {pk}" for pk in ended)
        )
    return len(ended)


@dataclass(frozen=True, slots=True)
class Overrun:
    """A run that runs and may have passed a limit a grace ago."""

    fence: Fence
    conversation_id: UUID
    code: str | None
    """Of the limit that it passed; None: its tokens and its cost are still to be added up."""
    silence_seconds: float | None
    tokens: float | None
    cost: float | None


# A sweep finds what beats here; what does not is an orphan, whatever its limits are.
_OVERRUNS = """
WITH declared AS (
    SELECT * FROM unnest(%s::text[], %s::float8[], %s::float8[], %s::float8[], %s::float8[])
        AS declared(agent, run_seconds, silence_seconds, tokens, cost)
),
held AS (
    SELECT run.id, run.claim_token, run.conversation_id, grace.seconds AS grace,
        extract(epoch FROM clock_timestamp() - COALESCE((SELECT resumed.created_at FROM
            agentruns_runevent resumed WHERE resumed.run_id = run.id AND
                resumed.seq = run.answered_seq + 1), run.started_at)) - grace.seconds AS age,
        LEAST(%s, declared.run_seconds, (run.limits ->> 'run_seconds')::float8) AS run_seconds,
        LEAST(declared.silence_seconds, (run.limits ->> 'silence_seconds')::float8)
            AS silence_seconds,
        LEAST(declared.tokens, (run.limits ->> 'tokens')::float8) AS tokens,
        LEAST(declared.cost, (run.limits ->> 'cost')::float8) AS cost
    FROM agentruns_agentrun run CROSS JOIN (SELECT %s::float8 AS seconds) grace
        LEFT JOIN declared ON declared.agent = run.agent
    WHERE run.status = 'running' AND run.claim_expires_at > clock_timestamp()
        AND run.id <> ALL(%s::uuid[])
),
judged AS (
    SELECT *, CASE WHEN age > run_seconds THEN 'timeout' WHEN age > silence_seconds THEN
        CASE WHEN silence_seconds + grace < (
            SELECT extract(epoch FROM clock_timestamp() - event.created_at)
            FROM agentruns_runevent event WHERE event.run_id = held.id ORDER BY seq DESC LIMIT 1)
        THEN 'silent' END END AS code
    FROM held WHERE age > 0
)
SELECT id, claim_token, conversation_id, code, silence_seconds, tokens, cost FROM judged
WHERE code IS NOT NULL OR tokens IS NOT NULL OR cost IS NOT NULL
"""


def _number(name: str) -> str:
    return (
        f"CASE jsonb_typeof(event.payload -> '{name}') WHEN 'number' THEN "
        f"(event.payload ->> '{name}')::numeric ELSE 0 END"
    )


# An aggregate in a lateral subquery is one walk by primary key for each run, whatever the planner
# believes about the journal: as a join it reads all of the table.
_SPENT = f"""
SELECT asked.run_id, told.seq, told.tokens::text, told.cost::text
FROM unnest(%s::uuid[], %s::int[]) AS asked(run_id, seq) CROSS JOIN LATERAL (
    SELECT max(event.seq) AS seq, COALESCE(sum({_number("input_tokens")} +
        {_number("output_tokens")}) FILTER (WHERE event.type = 'usage'), 0) AS tokens,
        COALESCE(sum({_number("cost")}) FILTER (WHERE event.type = 'usage'), 0) AS cost
    FROM agentruns_runevent event WHERE event.run_id = asked.run_id AND event.seq > asked.seq
        AND event.created_at < clock_timestamp() - %s::interval) told
WHERE told.seq IS NOT NULL
"""


@dataclass(frozen=True, slots=True)
class Spent:
    """What a run has reported, up to one row of its journal."""

    seq: int = 0
    tokens: float = 0
    cost: float = 0


class Overruns:
    """Ends runs that passed a limit a grace ago, sweep by sweep; remembers what was added up of
    their journals, so that each row is read once.
    """

    def __init__(self, *, longest: float, grace: timedelta) -> None:
        self._longest = longest
        self._grace = grace
        self._spent: dict[UUID, Spent] = {}
        self._looked = -math.inf

    @property
    def is_due(self) -> bool:
        """Whether it is time to look again: it need not be sooner than the grace is long."""
        return time.monotonic() - self._looked >= self._grace.total_seconds() / 2

    def end(self, *, spared: Iterable[UUID]) -> int:
        """End what passed a limit, except runs that are `spared`; how many."""
        self._looked = time.monotonic()
        found = self._find(spared)
        self._add_up([overrun for overrun in found if overrun.code is None])
        ended = 0
        for overrun in found:
            code = overrun.code or self._overspent(overrun)
            if code is not None:
                ended += end_overrun(overrun, code, grace=self._grace)
        return ended

    def _find(self, spared: Iterable[UUID]) -> list[Overrun]:
        declared = {name: limits.given() for name, limits in declared_limits().items()}
        columns = (
            [None if name not in limits else float(limits[name]) for limits in declared.values()]
            for name in ("run_seconds", "silence_seconds", "tokens", "cost")
        )
        params = [
            list(declared),
            *columns,
            float(self._longest),
            self._grace.total_seconds(),
            list(spared),
        ]
        return [
            Overrun(Fence(run_id, token), conversation_id, *limits)
            for run_id, token, conversation_id, *limits in db.script((_OVERRUNS, params))
        ]

    def _add_up(self, overruns: Sequence[Overrun]) -> None:
        ids = [overrun.fence.run_id for overrun in overruns]
        self._spent = {run_id: self._spent.get(run_id, Spent()) for run_id in ids}
        if not ids:
            return
        seqs = [self._spent[run_id].seq for run_id in ids]
        for run_id, seq, tokens, cost in db.script((_SPENT, [ids, seqs, self._grace])):
            before = self._spent[run_id]
            self._spent[run_id] = Spent(
                seq, before.tokens + float(tokens), before.cost + float(cost)
            )

    def _overspent(self, overrun: Overrun) -> str | None:
        spent = self._spent[overrun.fence.run_id]
        if overrun.tokens is not None and spent.tokens > overrun.tokens:
            return "token_limit"
        return "cost_limit" if overrun.cost is not None and spent.cost > overrun.cost else None


def end_overrun(overrun: Overrun, code: str, *, grace: timedelta) -> bool:
    """End one run with this code and what it has said, unless its worker is quicker; whether this
    call did.
    """
    fence, place = overrun.fence, overrun.conversation_id
    with db.atomic():
        run = turns.lock_run(AgentRun.objects.fenced(fence), place)
        if run is None or (code == "silent" and not _is_silent(overrun, grace)):
            return False
        standing = end_runs([failure_so_far(fence, place, code)])[run.pk].standing
    if standing is not Standing.HELD:
        return False
    metrics.endings.labels(run.agent, "failed", code).inc()
    logger.warning(
        "ended run %s of worker %s (%s): that worker beats and did not end it",
        run.pk,
        run.worker_id,
        code,
    )
    return True


def _is_silent(overrun: Overrun, grace: timedelta) -> bool:
    """Whether it still says nothing, now that its row is held and nothing can come."""
    assert overrun.silence_seconds is not None
    events = RunEvent.objects.filter(run_id=overrun.fence.run_id).order_by("-seq")
    silence = events.values_list(ClockTimestamp() - F("created_at"), flat=True)[:1]
    return any(since > timedelta(seconds=overrun.silence_seconds) + grace for since in silence)
