from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, connections

from agentruns.presence import Presence, State


@pytest.fixture
def worker(db: None) -> Callable[..., Presence]:
    """Show a worker that is alive, with a free slot, unless told otherwise."""

    def show(**changed: Any) -> Presence:
        busy, draining = changed.pop("busy", 0), changed.pop("draining", False)
        given: dict[str, Any] = {
            "worker_id": "host:1:test",
            "agents": ["assistant"],
            "slots": 4,
            "reaps": True,
            "lifetime": timedelta(seconds=30),
            "state": lambda: State(busy, draining),
        }
        presence = Presence(**{**given, **changed})
        presence.show()
        return presence

    return show


@contextmanager
def another_session() -> Iterator[Any]:
    """A cursor of a second connection, in a transaction that is rolled back at the end."""
    with ExitStack() as stack:
        other = connection.copy()
        stack.callback(other.close)
        other.connect()
        other.set_autocommit(False)
        cursor = stack.enter_context(other.cursor())
        stack.callback(other.rollback)
        yield cursor


@pytest.fixture
def held_row(transactional_db: None) -> Iterator[Callable[[str, Any], int]]:
    """Lock a row of a table in another session, for longer than a write takes; its pid."""
    with ExitStack() as stack:

        def hold(table: str, pk: Any) -> int:
            cursor = stack.enter_context(another_session())
            cursor.execute(f"SELECT id FROM {table} WHERE id = %s FOR NO KEY UPDATE", [pk])
            cursor.execute("SELECT pg_sleep(1.1), pg_backend_pid()")
            return int(cursor.fetchone()[1])

        yield hold
    connections.close_all()
