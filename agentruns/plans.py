"""Keep the plans of hot statements on connections that are the project's own.

Planning an enqueue costs the server more than running it. What is prepared belongs to one session,
and behind a pooler a session is anybody's: nothing is prepared before the server process that
answered was the one that the connection was made to, nor on a connection that is used a few times.
Nor inside a transaction of the caller's: outside, a plan that is gone costs one more round trip;
inside it would cost the transaction.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import psycopg

Statement = tuple[str, Sequence[Any]]

FEW_USES = 5
"""Of a statement on one connection, before it is prepared there."""
PID = "pg_backend_pid()"
"""The last column of the last of the statements: which process answered."""

# A plan that was made while a table was small is kept while it grows: it is to walk through none.
# The setting ends with the transaction that is these statements.
TABLE_READ = "FROM agentruns_"
BEFORE: Statement = ("SET LOCAL enable_seqscan = off", ())

GONE = (psycopg.errors.InvalidSqlStatementName, psycopg.errors.FeatureNotSupported)
"""The session was told to discard all, or a column has another type now."""

_numbers = itertools.count(1)


@lru_cache(maxsize=64)
def numbered(text: str, count: int) -> bytes:
    """The statement with `$1` and so on for its `count` placeholders.

    As psycopg writes it, once: it would look through a text of more than 4,096 characters each
    time.
    """
    return (text % tuple(f"${number}" for number in range(1, count + 1))).encode()


@dataclass(slots=True)
class _Plan:
    uses: int = 0
    name: str = ""


class Plans:
    """Those that one connection keeps."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._is_direct: bool | None = None
        """Whether it leads to one process of the server; None: it has not answered yet."""
        self._is_preparing = False
        """Nobody knows whether what the last statements prepared is there, until they answer."""
        self._plans: dict[str, _Plan] = {}

    def sent_for(self, statements: Sequence[Statement]) -> list[Statement]:
        """What to send for these statements, all in one."""
        before: list[Statement] = []
        sent = [self._sent_for(text, params, before) for text, params in statements]
        self._is_preparing = bool(before)
        if any(self._plans[text].name and TABLE_READ in text for text, _ in statements):
            before.append(BEFORE)
        return before + sent

    def _sent_for(self, text: str, params: Sequence[Any], before: list[Statement]) -> Statement:
        plan = self._plans.setdefault(text, _Plan())
        plan.uses += 1
        if not self._is_direct or plan.uses <= FEW_USES:
            return text, params
        if not plan.name:
            plan.name = f"agentruns_{next(_numbers)}"
            whole = f"PREPARE {plan.name} AS {numbered(text, len(params)).decode()}"
            before.append((whole.replace("%", "%%"), ()))
        return f"EXECUTE {plan.name} ({', '.join(['%s'] * len(params))})", params

    def answered(self, rows: Sequence[Sequence[Any]]) -> None:
        """The statements gave these rows."""
        if self._is_direct is None and rows:
            self._is_direct = rows[0][-1] == self._pid

    def failed(self, error: BaseException) -> bool:
        """Whether the statements failed for a plan alone, and are to be sent as they are."""
        is_gone = isinstance(error.__cause__, GONE)
        if is_gone or self._is_preparing:
            # Nobody knows what is there: nothing more is kept on this connection.
            self._is_direct = False
            self._plans.clear()
        return is_gone


_of: WeakKeyDictionary[psycopg.Connection[Any], Plans] = WeakKeyDictionary()


def of(raw: psycopg.Connection[Any]) -> Plans:
    """The plans that this connection keeps."""
    plans = _of.get(raw)
    if plans is None:
        plans = _of[raw] = Plans(raw.info.backend_pid)
    return plans
