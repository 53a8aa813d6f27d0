"""Keep claims alive.

Rung 3: a lease is the worker's promise to beat or finish before `claim_expires_at`. One statement
beats for all runs of a worker, skips a row that somebody else has locked, and brings back the stops
that were asked for. The token is never rotated: the worker's writes in flight carry it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from uuid import UUID

from . import db
from .fence import PROBED, Fence, fenced_sql
from .journal import Standing, standing


@dataclass(frozen=True, slots=True)
class Beat:
    """The answer to one heartbeat: how the claim stands, and whether a stop was asked for."""

    standing: Standing
    cancel_requested: bool


@cache
def _beat_sql() -> str:
    fenced = fenced_sql("id")
    return f"""
    WITH asked AS (SELECT * FROM unnest(%s::uuid[], %s::uuid[]) AS asked(run_id, token)),
    held AS MATERIALIZED (
        SELECT claim.id FROM asked CROSS JOIN LATERAL ({fenced} FOR NO KEY UPDATE SKIP LOCKED) claim
    ),
    beat AS (
        UPDATE agentruns_agentrun SET
            last_heartbeat_at = clock_timestamp(), claim_expires_at = clock_timestamp() +
                %s::interval
        WHERE id = ANY(ARRAY(SELECT id FROM held))
        RETURNING id, cancel_requested
    )
    SELECT asked.run_id, beat.id IS NOT NULL, beat.id IS NOT NULL OR EXISTS ({fenced} {PROBED}),
        COALESCE(beat.cancel_requested, false)
    FROM asked LEFT JOIN beat ON beat.id = asked.run_id
    """


def heartbeat(fences: Iterable[Fence], *, lease: timedelta) -> dict[UUID, Beat]:
    """Renew the leases: each `HELD` run's claim now lives for `lease` from the moment of the write,
    by the database's clock.

    A `LOCKED` run was not renewed: beat again soon. A `SUPERSEDED` one is no longer this worker's.
    """
    fences = sorted(fences, key=lambda fence: fence.run_id)
    tokens = [fence.token for fence in fences]
    rows = db.script((_beat_sql(), [[fence.run_id for fence in fences], tokens, lease]))
    return {run_id: Beat(standing(held, fenced), cancel) for run_id, held, fenced, cancel in rows}
