"""Beats leave no work behind for the vacuum, on a server that no other test shares: a transaction
in any of its databases keeps old versions on their page.
"""

from __future__ import annotations

import itertools
from datetime import timedelta

import psycopg
from django.db import connection

from agentruns.fence import Fence
from agentruns.lease import heartbeat
from tests.factories import AgentRunFactory
from tests.support import until


def test_beats_are_hot_updates(database: str) -> None:
    """At least 80 % of the beats over rows of realistic width stay on their page.

    In the best of ten batches of 600: an autovacuum's snapshot keeps old versions on their page.
    An index on a column that beats write spoils every batch.
    """
    runs = [AgentRunFactory(running=True, input={"content": "x" * 400}) for _ in range(60)]
    with connection.cursor() as cursor:
        cursor.execute("VACUUM agentruns_agentrun")
    fences = [Fence(run.pk, run.claim_token) for run in runs]

    with psycopg.connect(database, autocommit=True) as sql:
        counts = [beat(sql, fences, rounds=10) for _ in range(11)]

    shares = [
        (after[1] - before[1]) / (after[0] - before[0])
        for before, after in itertools.pairwise(counts)
    ]
    assert max(shares) >= 0.8, shares


def beat(sql: psycopg.Connection, fences: list[Fence], *, rounds: int) -> tuple[int, int]:
    """Beat for all runs so many times; what the table has counted after that."""
    expected = hot_updates(sql)[0] + rounds * len(fences)
    for _ in range(rounds):
        heartbeat(fences, lease=timedelta(seconds=30))
    connection.close()  # a backend that ends reports what it counted
    until(lambda: hot_updates(sql)[0] >= expected, f"{expected} updates were counted")
    return hot_updates(sql)


def hot_updates(sql: psycopg.Connection) -> tuple[int, int]:
    row = sql.execute(
        "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables"
        " WHERE relname = 'agentruns_agentrun'"
    ).fetchone()
    assert row is not None
    return row
