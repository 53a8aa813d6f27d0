"""Find out who holds a row's lock, which everyone else steps over."""

from __future__ import annotations

from typing import Any

from django.db import models, transaction

from . import db
from .text import span

# A locker's transaction stands in the row's xmax; several lockers at once stand in a multixact,
# which names nobody here.
_HOLDER = """
SELECT activity.pid, activity.state, activity.application_name,
    extract(epoch FROM clock_timestamp() - activity.xact_start)::float8
FROM {table} locked
JOIN pg_locks lock ON lock.transactionid = locked.xmax AND lock.granted
    AND lock.mode = 'ExclusiveLock'
JOIN pg_stat_activity activity ON activity.pid = lock.pid
WHERE locked.id = %s
"""

BRIEF_SECONDS = 1.0
"""A lock of a younger transaction is the moment of somebody's write."""


def holder(row: models.Model) -> str | None:
    """Who has this row locked, in words; None: nobody, or only for the moment of a write."""
    with transaction.atomic(using=db.alias()):
        free = type(row)._base_manager.using(db.alias()).filter(pk=row.pk)
        free = free.select_for_update(no_key=True, skip_locked=True, of=("self",))
        if free.values_list("pk").first() is not None:
            return None
        with db.connection().cursor() as cursor:
            cursor.execute(_HOLDER.format(table=row._meta.db_table), [row.pk])
            found: tuple[Any, ...] | None = cursor.fetchone()
    if found is None:
        return "another session"
    pid, state, application, seconds = found
    if (seconds or 0) < BRIEF_SECONDS:
        return None
    name = f" ({application})" if application else ""
    return f"session {pid}{name}, {state}, in a transaction since {span(seconds or 0)}"
