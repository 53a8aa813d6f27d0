"""Child processes that never outlive this one."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO, Self

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Ended:
    """A child that ended, and with what."""

    name: str
    code: int
    lived: float
    """Seconds from its start to its end."""


@dataclass(slots=True)
class Children:
    """Started in order, ended in order; `news` gets an `Ended` of each.

    Every child is in a session of its own: a Ctrl-C on the terminal reaches the parent alone, which
    ends them one after the other. A killed parent ends them through the pipe of `project.tether`.
    """

    grace: float = 15
    """Seconds that a child has to end before it is killed."""
    news: queue.SimpleQueue[object] = field(default_factory=queue.SimpleQueue)
    _running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _starts: dict[str, Callable[[], None]] = field(default_factory=dict)
    _tether: tuple[int, int] = field(default_factory=os.pipe)

    def start(
        self, name: str, *command: str, output: IO[bytes] | None = None, fds: Sequence[int] = ()
    ) -> None:
        self._starts[name] = partial(self.start, name, *command, output=output, fds=fds)
        held, _ = self._tether
        process = subprocess.Popen(
            [sys.executable, "-m", "project.tether", str(held), *command],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output or sys.stderr,
            stderr=subprocess.STDOUT,
            pass_fds=(held, *fds),
            start_new_session=True,
        )
        self._running[name] = process
        threading.Thread(target=self._watch, args=(name, process), daemon=True).start()

    def start_again(self, name: str) -> None:
        """Start a child that ended, in the same way."""
        self._starts[name]()

    def stop(self) -> None:
        while self._running:
            _, process = self._running.popitem()
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(self.grace)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.stop()
        finally:
            for fd in self._tether:
                os.close(fd)

    def _watch(self, name: str, process: subprocess.Popen[bytes]) -> None:
        begun = time.monotonic()
        code = process.wait()
        self.news.put(Ended(name, code, time.monotonic() - begun))
