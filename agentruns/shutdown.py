"""Cut streams off when the process is told to end, so that deploys are quick.

Servers wait for open responses before they end, and a stream may be open for an hour. Cut off, not
finished: the client must not take it for the end of the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_streams: set[asyncio.Task[Any]] = set()
_before: dict[int, Any] = {}


@contextlib.contextmanager
def cut_off_at_shutdown(task: asyncio.Task[Any]) -> Iterator[None]:
    """While inside, a signal to end cancels the task; the server's own handler runs after that."""
    _install()
    _streams.add(task)
    try:
        yield
    finally:
        _streams.discard(task)


def _install() -> None:
    if threading.current_thread() is not threading.main_thread():
        return  # the server's loop does not own the signals
    for signum in _SIGNALS:
        handler = signal.getsignal(signum)
        # None: installed from outside Python. The server may have set its own since the last time.
        if handler is not None and handler is not _cut_off and handler != signal.SIG_IGN:
            _before[signum] = handler
            signal.signal(signum, _cut_off)


def _cut_off(signum: int, frame: FrameType | None) -> None:
    for task in list(_streams):
        with contextlib.suppress(RuntimeError):  # a loop that is closed has no streams left
            task.get_loop().call_soon_threadsafe(task.cancel)
    before: Callable[[int, FrameType | None], Any] | int = _before[signum]
    if callable(before):
        before(signum, frame)
    else:
        signal.signal(signum, signal.SIG_DFL)
        signal.raise_signal(signum)
