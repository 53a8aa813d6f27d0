"""Keep the plans of hot statements on connections that are the project's own.

Planning an enqueue costs the server more than running it. What is prepared belongs to one session,
and behind a pooler a session is anybody's: nothing is prepared before the server process that
answered was the one that the connection was made to, nor on a connection that is used a few times.
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
PID = "SELECT pg_backend_pid()"

# A plan that was made while a table was small is kept while it grows: it is to walk through none.
# The setting is for these statements alone: it ends with their transaction, or is taken back where
# that goes on.
TABLE_READ = "FROM agentruns_"
BEFORE: Statement = ("SET LOCAL enable_seqscan = off", ())
AFTER: Sequence[Statement] = (("SET LOCAL enable_seqscan TO DEFAULT", ()),)

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
    is_new: bool = False
    """It is being prepared now: nobody knows yet whether it is there."""


class Plans:
    """Those that one connection keeps."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._is_direct: bool | None = None
        """Whether it leads to one process of the server; None: nobody has asked."""
        self._plans: dict[str, _Plan] = {}

    @property
    def asks(self) -> bool:
        """Whether to ask for the server's process along with the next statements."""
        return self._is_direct is None and any(p.uses >= FEW_USES for p in self._plans.values())

    def told(self, pid: int) -> None:
        self._is_direct = pid == self._pid

    def sent_for(self, statements: Sequence[Statement]) -> tuple[list[Statement], list[Statement]]:
        """What goes ahead of these statements, and what is sent in their place, all in one."""
        before: list[Statement] = []
        sent = [self._sent_for(text, params, before) for text, params in statements]
        if any(self._plans[text].name and TABLE_READ in text for text, _ in statements):
            before.append(BEFORE)
        return before, sent

    def _sent_for(self, text: str, params: Sequence[Any], before: list[Statement]) -> Statement:
        plan = self._plans.setdefault(text, _Plan())
        plan.uses += 1
        if not self._is_direct or plan.uses <= FEW_USES:
            return text, params
        if not plan.name:
            plan.name, plan.is_new = f"agentruns_{next(_numbers)}", True
            whole = f"PREPARE {plan.name} AS {numbered(text, len(params)).decode()}"
            before.append((whole.replace("%", "%%"), ()))
        return f"EXECUTE {plan.name} ({', '.join(['%s'] * len(params))})", params

    def stored(self) -> None:
        for plan in self._plans.values():
            plan.is_new = False

    def failed(self, error: BaseException) -> bool:
        """Whether the statements failed for a plan that is gone (the session was told to discard
        all): then none is kept on this connection any more.
        """
        for plan in self._plans.values():
            if plan.is_new:
                plan.uses, plan.name, plan.is_new = 0, "", False
        if not isinstance(error.__cause__, psycopg.errors.InvalidSqlStatementName):
            return False
        self._is_direct = False
        return True


_of: WeakKeyDictionary[psycopg.Connection[Any], Plans] = WeakKeyDictionary()


def of(raw: psycopg.Connection[Any]) -> Plans:
    """The plans that this connection keeps."""
    plans = _of.get(raw)
    if plans is None:
        plans = _of[raw] = Plans(raw.info.backend_pid)
    return plans
