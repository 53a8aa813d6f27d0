"""Let workers be seen, also those that have nothing to do.

One row per worker process, written beside its heartbeats in a statement of its own. It is for
people and probes: nothing claims, reaps or ends a run by it, and a worker that cannot write it
works on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID

from . import db
from .ids import uuid7

KEPT = timedelta(hours=1)
"""How long a worker that was not seen again stays in the list, so that a crash can be seen."""

# Whoever is seen removes the rows of those long gone: no sweep has to.
_SEEN = """
WITH forgotten AS (DELETE FROM agentruns_worker WHERE gone_at < clock_timestamp() - %s::interval)
INSERT INTO agentruns_worker (id, worker_id, agents, slots, busy, draining, reaps, started_at,
    seen_at, gone_at)
SELECT %s::uuid, %s::text, %s::jsonb, %s::int, %s::int, %s::bool, %s::bool, moment, moment,
    moment + %s::interval
FROM (SELECT clock_timestamp() AS moment) clock
ON CONFLICT (id) DO UPDATE SET busy = excluded.busy, draining = excluded.draining,
    seen_at = excluded.seen_at, gone_at = excluded.gone_at
RETURNING id
"""


@dataclass(frozen=True, slots=True)
class State:
    """What changes while a worker lives."""

    busy: int
    draining: bool


@dataclass(frozen=True, slots=True)
class Presence:
    """A worker process's own row."""

    worker_id: str
    agents: Sequence[str]
    slots: int
    reaps: bool
    lifetime: timedelta
    """How long after a sign of life the worker still counts as alive."""
    state: Callable[[], State]
    row_id: UUID = field(default_factory=uuid7)

    def show(self) -> None:
        """Write the row: this worker is alive now, by the database's clock."""
        state = self.state()
        params = [
            KEPT,
            self.row_id,
            self.worker_id,
            json.dumps(list(self.agents)),
            self.slots,
            state.busy,
            state.draining,
            self.reaps,
            self.lifetime,
        ]
        db.script((_SEEN, params))

    def leave(self) -> None:
        """Remove the row: this worker ended in good order."""
        db.script(("DELETE FROM agentruns_worker WHERE id = %s RETURNING id", [self.row_id]))
