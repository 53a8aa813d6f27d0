"""Send no faster than the client reads.

Most servers hold `send` back while a client's buffer is full. Daphne takes everything at once and
keeps it in memory, but what it writes through is Twisted, which tells a registered producer when to
pause: then what waits stays in the journal, not in the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

Send = Callable[[dict[str, Any]], Awaitable[None]]


class _Producer:
    """Twisted's `IPushProducer`: told to pause when the client's buffer is full."""

    def __init__(self) -> None:
        self.may_write = asyncio.Event()
        self.may_write.set()

    def pauseProducing(self) -> None:  # noqa: N802  Twisted's name
        self.may_write.clear()

    def resumeProducing(self) -> None:  # noqa: N802
        self.may_write.set()

    def stopProducing(self) -> None:  # noqa: N802  the client has left: nobody is to wait for it
        self.may_write.set()


@contextlib.contextmanager
def paced(send: Send) -> Iterator[Send]:
    """A `send` that waits while the client does not read."""
    protocol = _twisted_protocol(send)
    if protocol is None:
        yield send
        return
    producer = _Producer()

    async def send_when_read(message: dict[str, Any]) -> None:
        await producer.may_write.wait()
        await send(message)

    try:
        protocol.registerProducer(producer, True)
    except RuntimeError:  # a WebSocket: the HTTP request that it began as is still registered
        protocol.unregisterProducer()
        protocol.registerProducer(producer, True)
    try:
        yield send_when_read
    finally:
        with contextlib.suppress(AttributeError):  # the connection is gone, and its channel with it
            protocol.unregisterProducer()


def cut(send: Send) -> None:
    """Break the connection off, where the server would leave the client waiting for ever."""
    transport = getattr(_twisted_protocol(send), "transport", None)
    if transport is not None:
        transport.abortConnection()


def _twisted_protocol(send: Send) -> Any:
    """The connection behind Daphne's `send`, a partial of its reply handler; else None."""
    if isinstance(send, functools.partial) and send.args:
        protocol = send.args[0]
        if hasattr(protocol, "registerProducer") and hasattr(protocol, "unregisterProducer"):
            return protocol
    return None
