"""Send a hint.

Rung 5: a NOTIFY rides the transaction of the row that it hints at, once per transaction, with ids
only. Losing one costs latency, never a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from uuid import UUID

from . import db

RUN_READY = "agentruns_ready"
"""To workers: the named runs may start."""
RUN_EVENTS = "agentruns_events"
"""To viewers: the named runs have new rows in their journals."""
RUN_STOP = "agentruns_stop"
"""To workers: a stop was asked for, of the named runs."""

# A payload of 8,000 bytes fails the whole transaction. 32 digits and a comma each.
IDS_PER_PAYLOAD = 240

# Hints at the runs of `held`, inside a hot statement.
HINTS = f"""
    SELECT pg_notify('{RUN_EVENTS}', string_agg(digits, ',')) FROM (
        SELECT replace(id::text, '-', '') AS digits, (row_number() OVER () - 1) / {IDS_PER_PAYLOAD}
            AS part FROM held
    ) hint GROUP BY part
"""


def payloads(run_ids: Iterable[UUID]) -> Iterator[str]:
    ids = [run_id.hex for run_id in run_ids]
    for start in range(0, len(ids), IDS_PER_PAYLOAD):
        yield ",".join(ids[start : start + IDS_PER_PAYLOAD])


def ids_in(payload: str) -> list[UUID]:
    return [UUID(hex=text) for text in payload.split(",") if text]


def notify(channel: str, run_ids: Iterable[UUID]) -> None:
    """Hint at the runs on `channel` when the current transaction commits; nobody hears of one that
    rolls back.
    """
    texts = list(payloads(run_ids))
    if texts:
        with db.connection().cursor() as cursor:
            cursor.execute(
                "SELECT pg_notify(%s, payload) FROM unnest(%s::text[]) payload", [channel, texts]
            )
