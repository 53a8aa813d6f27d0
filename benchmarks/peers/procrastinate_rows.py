"""Rows of procrastinate's tables."""

from __future__ import annotations

from typing import Any

import psycopg


def clear(connection: psycopg.Connection[Any]) -> None:
    connection.execute("TRUNCATE procrastinate_jobs, procrastinate_events CASCADE")


def fill(connection: psycopg.Connection[Any], jobs: int) -> None:
    connection.execute(
        "INSERT INTO procrastinate_jobs (queue_name, task_name, args, status) "
        "SELECT 'default', 'noop', '{}', 'todo' FROM generate_series(1, %s)",
        [jobs],
    )
    connection.execute("VACUUM (ANALYZE) procrastinate_jobs, procrastinate_events")
