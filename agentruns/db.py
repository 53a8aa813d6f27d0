"""Reaching the database from code that is not a request.

A `Lane` is a control thread's own connection: outside any pool, with a limit on every wait, so that
neither agent code nor a silent network holds up heartbeats. `script` sends several statements in
one round trip. `in_thread` is the one bridge from asyncio to the ORM.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from asgiref.sync import SyncToAsync, sync_to_async
from django.db import (
    DatabaseError,
    InterfaceError,
    OperationalError,
    connections,
    transaction,
)
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import QuerySet
from psycopg import Cursor, RawCursor
from psycopg import sql as psycopg_sql
from psycopg.types.datetime import TimestamptzLoader

from . import plans
from .conf import get_config

DATABASE_TROUBLE = (DatabaseError, InterfaceError, OSError)
"""What a loop meets when the database is away, slow, read-only or refuses: it waits and tries
again.
"""

CONNECTION_TROUBLE = (OperationalError, InterfaceError, OSError)
"""What a read meets when its connection or the database is gone, whatever it asked for."""

# Half-open connections: the peer is asked after 3 s of silence and given up 6 s later;
# unacknowledged data counts 8 s.
TCP_LIMITS = {
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 3,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 8000,
}

NO_STARTUP_PARAMETERS = "unsupported startup parameter"
"""How a pooler says that sessions behind it have no settings of their own."""

MAX_CURSORS = 16
"""Of one connection; a lane has a handful of statements."""
MAX_KEPT_ROWS = 100
"""A cursor that stays keeps its last answer with it; not a large one."""

_thread = threading.local()


def alias() -> str:
    """The alias of the database that holds the queue."""
    return get_config().DATABASE


def connection() -> BaseDatabaseWrapper:
    """This thread's connection to the queue's database."""
    return connections[alias()]


@contextlib.contextmanager
def atomic() -> Iterator[None]:
    """A transaction (inside one of the caller's: a savepoint) on the queue's database."""
    _progress()
    with transaction.atomic(using=alias()):
        for statement in _limits_of_this_thread():
            with connection().cursor() as cursor:
                cursor.execute(statement)
        yield


def script(*statements: plans.Statement, is_hot: bool = False) -> list[tuple[Any, ...]]:
    """Run the statements in order, in one transaction and one round trip; the rows of the last.

    Each statement has its own snapshot (at READ COMMITTED): one that follows a row lock sees what
    the lock waited for. The plans of hot ones are kept where that can be; the last column of the
    last of them is `plans.PID`.
    """
    _progress()
    wrapper = connection()
    if getattr(_thread, "prepares", False):
        return _prepared(wrapper, statements)
    limits: list[plans.Statement] = [(text, ()) for text in _limits_of_this_thread()]
    if wrapper.settings_dict["OPTIONS"].get("server_side_binding"):
        # Parameters bound by the server go with one statement only.
        with transaction.atomic(using=wrapper.alias), wrapper.cursor() as cursor:
            for text, params in [*limits, *statements]:
                cursor.execute(text, params or None)
            return list(cursor.fetchall())
    if is_hot and not (limits or get_config().pooled) and wrapper.get_autocommit():
        return _planned(wrapper, statements)
    with wrapper.cursor() as cursor:
        return _together(cursor, [*limits, *statements])


def _planned(
    wrapper: BaseDatabaseWrapper, statements: Sequence[plans.Statement]
) -> list[tuple[Any, ...]]:
    """`script` of hot statements on a connection of the project's, in their own transaction."""
    with wrapper.cursor() as cursor:
        kept = plans.of(wrapper.connection)
        try:
            rows = _together(cursor, kept.sent_for(statements))
        except BaseException as error:
            if not kept.failed(error):
                raise
            rows = _together(cursor, statements)
        kept.answered(rows)
        return rows


def _together(cursor: Any, statements: Sequence[plans.Statement]) -> list[tuple[Any, ...]]:
    """Send the statements as one text; the rows of the last."""
    values = [value for _, params in statements for value in params]
    cursor.execute(";\n".join(text for text, _ in statements), values or None)
    # To the end, not by count: a project's wrapper may have put a statement of its own in front.
    while cursor.nextset():
        pass
    return list(cursor.fetchall())


def _prepared(
    wrapper: BaseDatabaseWrapper, statements: Sequence[plans.Statement]
) -> list[tuple[Any, ...]]:
    """`script` by prepared statements: planning a hot statement costs more than running it."""
    wrapper.ensure_connection()
    raw = wrapper.connection
    # What a pipeline holds is one transaction: the server commits at its end.
    together = raw.pipeline() if len(statements) > 1 else contextlib.nullcontext()
    with wrapper.wrap_database_errors:
        with together:
            for text, params in statements:
                sent = plans.numbered(text, len(params))
                cursor = _cursor_of(raw, text).execute(sent, params, prepare=True)
        rows = cursor.fetchall()
    if len(rows) > MAX_KEPT_ROWS:
        _thread.cursors.clear()
    return rows


def _cursor_of(raw: Any, text: str) -> Cursor[tuple[Any, ...]]:
    """The cursor of this statement on this thread's connection: one that stays knows already how
    to send and read its values, a third of what the statement costs the client.
    """
    if getattr(_thread, "raw", None) is not raw:
        _thread.raw, _thread.cursors = raw, {}
    cursors: dict[str, Cursor[tuple[Any, ...]]] = _thread.cursors
    if text not in cursors:
        if len(cursors) >= MAX_CURSORS:
            cursors.clear()
        cursors[text] = _raw_cursor(raw)
    return cursors[text]


def _raw_cursor(raw: Any) -> Cursor[tuple[Any, ...]]:
    cursor = RawCursor(raw)
    if connection().timezone is not None:
        # psycopg's own, in C: Django's gives each moment the same zone once more, in Python.
        cursor.adapters.register_loader("timestamptz", TimestamptzLoader)
    return cursor


def compiled(queryset: QuerySet[Any, Any]) -> str:
    """The queryset's SELECT with its values written in, to be embedded in a hot statement that has
    parameters of its own.
    """
    text, params = queryset.query.sql_with_params()
    literals = tuple(psycopg_sql.Literal(value).as_string(None) for value in params)
    return (text % literals).replace("%", "%%")


def _limits_of_this_thread() -> tuple[str, ...]:
    return getattr(_thread, "limits", ())


def _progress() -> None:
    """The limit is one statement's: what takes many of them is not cut off for that."""
    lane: Lane | None = getattr(_thread, "lane", None)
    if lane is not None:
        lane.progress()


def was_answered(error: BaseException) -> bool:
    """Whether the server itself refused: then nothing of the statement is stored.

    After any other error nobody knows, even if it names an administrator's command: the commit may
    have come before it.
    """
    state = getattr(error.__cause__, "sqlstate", None) or ""
    return bool(state) and not state.startswith(("08", "57P"))


def brief(error: BaseException) -> str:
    """The first line of the error's text, for the log."""
    return (str(error).strip().splitlines() or [""])[0] or type(error).__name__


def cut(descriptor: int) -> None:
    """Shut a connection's socket down from outside: whoever waits on it gets an error at once."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as duplicate:
        duplicate.shutdown(socket.SHUT_RDWR)


class Lane:
    """A control thread's connection, made in the thread that calls `open`.

    `limit` is the longest that one statement may take, in seconds; a statement that outlives it by
    half is cut off with its socket by whoever calls `enforce`, since a server that went silent
    never answers a timeout either. With `prepares`, `script` keeps its statements' plans: they
    must be good for parameters of any size, and the thread opens no transactions of its own.
    """

    def __init__(self, name: str, *, limit: float, prepares: bool = False) -> None:
        self.name = name
        self._prepares = prepares
        self.application_name = f"agentruns {name}"
        self.limit = limit
        self.pooled = False
        """Whether it leads through a pooler, where a session is anybody's."""
        self._wrapper: BaseDatabaseWrapper | None = None
        self._busy_since: float | None = None
        self._lock = threading.Lock()

    def open(self, *, pooled: bool | None = None) -> None:
        """Give this thread a connection of its own; it connects at first use."""
        template = connections[alias()]
        options = {
            **TCP_LIMITS,
            "connect_timeout": max(2, min(TCP_LIMITS["connect_timeout"], math.ceil(self.limit))),
            **template.settings_dict["OPTIONS"],
            "application_name": self.application_name,
        }
        for unfit in ("pool", "isolation_level"):
            options.pop(unfit, None)
        milliseconds = int(self.limit * 1000)
        limits: dict[str, object] = {
            "statement_timeout": milliseconds,
            "lock_timeout": milliseconds // 2,
            "idle_in_transaction_session_timeout": milliseconds,
        }
        _thread.lane = self
        _thread.limits = ()
        self.pooled = get_config().pooled if pooled is None else pooled
        _thread.prepares = self._prepares and not self.pooled
        if self.pooled:
            # The limits go with each transaction.
            _thread.limits = tuple(f"SET LOCAL {name} = {value}" for name, value in limits.items())
        else:
            given = (
                options.get("options", ""),
                r"-c default_transaction_isolation=read\ committed",
            )
            if self._prepares:
                limits["plan_cache_mode"] = "force_generic_plan"
                # A plan that was made while a table was small is kept while it grows.
                limits["enable_seqscan"] = "off"
                options["prepare_threshold"] = 0
            options["options"] = " ".join(
                [*given, *(f"-c {name}={value}" for name, value in limits.items())]
            ).strip()
        self._wrapper = type(template)(
            {
                **template.settings_dict,
                "OPTIONS": options,
                "CONN_MAX_AGE": None,
                "AUTOCOMMIT": True,
            },
            alias(),
        )
        self._wrapper.inc_thread_sharing()  # a pool closes the lanes of its threads
        connections[alias()] = self._wrapper

    @contextlib.contextmanager
    def statement(self) -> Iterator[None]:
        """Whatever runs inside is limited; any error drops the connection, so that the next use
        starts from a clean one.
        """
        self._busy_since = time.monotonic()
        try:
            yield
        except BaseException as error:
            self.close()
            if NO_STARTUP_PARAMETERS in str(error) and not self.pooled:
                self._restore()
                self.open(pooled=True)
            raise
        finally:
            self._busy_since = None

    def progress(self) -> None:
        """Another statement begins; the limit is counted anew."""
        if self._busy_since is not None:
            self._busy_since = time.monotonic()

    def enforce(self) -> bool:
        """Cut off a statement that has outlived its limit; whether there was one. Called from
        another thread.
        """
        since = self._busy_since
        if since is None or time.monotonic() - since < self.limit * 1.5:
            return False
        with self._lock, contextlib.suppress(Exception):
            raw = self._wrapper.connection if self._wrapper else None
            if raw is None:
                return False
            cut(raw.pgconn.socket)
            return True
        return False

    def _restore(self) -> None:
        """Have the thread's connection made from the project's settings again."""
        del connections[alias()]

    def close(self) -> None:
        with self._lock, contextlib.suppress(Exception):
            if self._wrapper is not None:
                # A transaction left open here would have Django keep the broken connection.
                self._wrapper.in_atomic_block = False
                self._wrapper.close()


MAX_REASONS = 5


class Backoff:
    """How long a loop waits after the n-th failure in a row: doubling from `first` to `most`
    seconds, with jitter.
    """

    def __init__(self, *, first: float = 0.1, most: float = 5.0) -> None:
        self.first = first
        self.most = most
        self.failures = 0
        self._said: set[str] = set()

    def reset(self) -> None:
        self.failures = 0
        self._said.clear()

    def is_news(self, error: BaseException) -> bool:
        """Whether this is to be logged: each reason once between two successes, and not many."""
        reason = brief(error)
        if reason in self._said or len(self._said) >= MAX_REASONS:
            return False
        self._said.add(reason)
        return True

    def next(self) -> float:
        self.failures += 1
        ceiling = min(self.most, self.first * 2 ** min(self.failures, 16))
        return random.uniform(ceiling / 2, ceiling)


READ_THREADS = 2
"""So that a process with any number of viewers holds two connections for their reads."""
READ_LIMIT_SECONDS = 5.0


class Pool:
    """A few threads with a lane each, for asyncio code to run database verbs in.

    Apart from Django's one thread for `sync_to_async`: a slow call of an agent holds nobody up.
    """

    def __init__(self, size: int, *, limit: float) -> None:
        self._size = size
        self._limit = limit
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None
        self._lanes: list[Lane] = []
        self._own = threading.local()
        self._pid = 0

    async def run(self, verb: Callable[[], Any]) -> Any:
        """Run the verb; raises `OperationalError` where the database gives no answer in time.

        A caller that waits no longer takes a verb that has not begun with it: what nobody waits for
        is in nobody's way.
        """
        future = asyncio.get_running_loop().run_in_executor(self._started(), self._call, verb)
        try:
            return await asyncio.wait_for(future, self._limit * 2)
        except TimeoutError:
            for lane in self._lanes:
                lane.enforce()
            raise OperationalError("the database gave no answer in time") from None

    def close(self) -> None:
        """Close the connections; the next use opens new ones."""
        with self._lock:
            executor, self._executor = self._executor, None
            lanes, self._lanes = self._lanes, []
        if executor is not None:
            executor.shutdown(wait=True)
            for lane in lanes:
                lane.close()

    def _started(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._executor is None or self._pid != os.getpid():
                self._pid = os.getpid()
                self._lanes = []
                self._executor = ThreadPoolExecutor(
                    self._size, thread_name_prefix="agentruns-read", initializer=self._open
                )
            return self._executor

    def _open(self) -> None:
        lane = self._own.lane = Lane("read", limit=self._limit)
        lane.open()
        self._lanes.append(lane)

    def _call(self, verb: Callable[[], Any]) -> Any:
        lane: Lane = self._own.lane
        try:
            with lane.statement():
                try:
                    return verb()
                except DATABASE_TROUBLE:
                    raise
                except Exception as error:  # says nothing against the connection
                    raised = error
            raise raised
        finally:
            for other in connections.all(initialized_only=True):
                if other.alias != alias():
                    other.close_if_unusable_or_obsolete()


_pool = Pool(READ_THREADS, limit=READ_LIMIT_SECONDS)


async def in_thread(verb: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a database verb in one of the app's own threads."""
    return await _pool.run(functools.partial(verb, *args, **kwargs))


async def release_thread() -> None:
    """Give back what a request's sync code has held: its thread, and that thread's connections.

    For an answer that goes on long after the view returned; Django keeps both until its end.
    """
    await sync_to_async(_close_idle, thread_sensitive=True)()
    context = SyncToAsync.thread_sensitive_context.get(None)
    if context is not None:  # later sync code of the request gets another thread
        executor = SyncToAsync.context_to_thread_executor.pop(context, None)
        if executor is not None:
            executor.shutdown(wait=False)


def _close_idle() -> None:
    for each in connections.all(initialized_only=True):
        if not each.in_atomic_block:
            each.close()


def close_pool() -> None:
    """Close the connections of `in_thread`; for tests, which drop their database."""
    _pool.close()


def async_twin(verb: Callable[..., Any]) -> Callable[..., Any]:
    """The `a…` form of a verb: on the thread, and so in the transaction, of the caller's other
    async ORM calls.
    """

    @functools.wraps(verb)
    async def twin(*args: Any, **kwargs: Any) -> Any:
        return await sync_to_async(verb, thread_sensitive=True)(*args, **kwargs)

    twin.__name__ = f"a{verb.__name__}"
    twin.__qualname__ = twin.__name__
    return twin
