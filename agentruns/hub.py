"""Hear hints.

Rung 5: one LISTEN connection per process, on which nothing else runs, shared by everyone in the
process who waits. It says `None` to every subscriber when it has (re)connected, since hints were
lost in between; while it is not hearing, everyone polls.
"""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping

import psycopg
from django.db import connections

from . import metrics
from .db import TCP_LIMITS, Backoff, brief, cut

logger = logging.getLogger(__name__)

Subscriber = Callable[[str | None], None]
"""Called in the hub's thread with a payload, or with None for «look again at everything». Must not
block.
"""

PING_SECONDS = 5.0
"""Silence after which the connection is tried."""
ANSWER_SECONDS = 8.0
"""How long the answer to a try may take."""
DEAF_RETRY_SECONDS = 60.0
"""How long a connection that accepts LISTEN but hears nothing is left before the next attempt."""


class Deaf(Exception):
    """The connection takes LISTEN and never delivers: it leads through a transaction pooler."""


class Hub:
    """Listens on `channels` in a thread of its own and calls each channel's subscriber.

    `alias` is the database to listen on (a direct connection, never a pooler); None hears nothing.
    """

    def __init__(self, channels: Mapping[str, Subscriber], *, alias: str | None) -> None:
        self.hearing = False
        """Whether hints arrive now: a self-sent one came back on this connection."""
        self.reconnects = 0
        self._channels = dict(channels)
        self._alias = alias
        self._closed = threading.Event()
        self._waker_out, self._waker_in = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="agentruns-hub", daemon=True)

    def start(self) -> None:
        if self._alias is not None:
            self._thread.start()

    def close(self, *, timeout: float = 0.0) -> None:
        """Stop hearing; the thread ends by itself, and is waited for as long as `timeout` says."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._waker_in.send(b".")
        if self._thread.is_alive():
            self._thread.join(timeout)
        else:
            self._close_sockets()

    def _close_sockets(self) -> None:
        self._waker_out.close()
        self._waker_in.close()

    def _run(self) -> None:
        backoff = Backoff()
        complained = deaf = False
        while not self._closed.is_set():
            pause = 0.0
            try:
                with self._connect() as connection:
                    self._subscribe(connection)
                    if complained or deaf:
                        logger.info("hub: hearing again")
                    complained = deaf = False
                    backoff.reset()
                    self._hear(connection)
            except Deaf:
                pause = DEAF_RETRY_SECONDS
                if not deaf:
                    logger.warning(
                        "hub: the connection to %r takes LISTEN but hears nothing; it leads "
                        "through a transaction pooler. Set AGENTRUNS['LISTEN_DATABASE'] to the "
                        "alias of a direct connection. Until then runs are found by polling.",
                        self._alias,
                    )
                deaf = True
            except Exception as error:
                pause = backoff.next()
                if backoff.is_news(error) and not self._closed.is_set():
                    logger.warning("hub: not hearing (%s), polling until it is back", brief(error))
                complained = True
            self.hearing = False
            self.reconnects += 1
            metrics.reconnects.inc()
            self._closed.wait(pause)
        self._close_sockets()

    def _connect(self) -> psycopg.Connection[tuple[object, ...]]:
        assert self._alias is not None
        params = connections[self._alias].get_connection_params()
        params = {**TCP_LIMITS, **params, "autocommit": True, "application_name": "agentruns hub"}
        for name in ("context", "cursor_factory"):
            params.pop(name, None)
        return psycopg.connect(**params)

    def _subscribe(self, connection: psycopg.Connection[tuple[object, ...]]) -> None:
        ping = f"agentruns_ping_{uuid.uuid4().hex}"
        with _limited(connection):
            for channel in (*self._channels, ping):
                connection.execute(f'LISTEN "{channel}"')
            self._ping(connection, ping)
            if not list(connection.notifies(timeout=ANSWER_SECONDS / 2, stop_after=1)):
                connection.execute("UNLISTEN *")
                raise Deaf
            connection.execute(f'UNLISTEN "{ping}"')
        self.hearing = True
        for subscriber in self._channels.values():
            self._tell(subscriber, None)

    def _ping(self, connection: psycopg.Connection[tuple[object, ...]], channel: str) -> None:
        """Notify on the channel: by this connection where it leads to one server process, else by
        another one, since a transaction pooler does deliver what a client sends to itself.
        """
        answer = connection.execute("SELECT pg_backend_pid()").fetchone()
        if answer == (connection.info.backend_pid,):
            connection.execute(f'NOTIFY "{channel}"')
            return
        with self._connect() as other, _limited(other):
            other.execute(f'NOTIFY "{channel}"')

    def _hear(self, connection: psycopg.Connection[tuple[object, ...]]) -> None:
        waiting = select.poll()  # select() refuses descriptors from 1024 on
        for descriptor in (connection.fileno(), self._waker_out.fileno()):
            waiting.register(descriptor, select.POLLIN)
        while not self._closed.is_set():
            if not waiting.poll(PING_SECONDS * 1000):
                with _limited(connection):
                    connection.execute("SELECT 1")
            for notification in connection.notifies(timeout=0):
                subscriber = self._channels.get(notification.channel)
                if subscriber is not None:
                    self._tell(subscriber, notification.payload)

    def _tell(self, subscriber: Subscriber, payload: str | None) -> None:
        try:
            subscriber(payload)
        except Exception:
            logger.exception("hub: a subscriber failed")


@contextlib.contextmanager
def _limited(connection: psycopg.Connection[tuple[object, ...]]) -> Iterator[None]:
    """Cut the connection off if the block takes longer than an answer may: a half-open one raises
    no error by itself.
    """
    timer = threading.Timer(ANSWER_SECONDS, cut, [connection.fileno()])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
