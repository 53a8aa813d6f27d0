"""The wire between the demo's web server and the command that supervises it.

A socket pair that only the demo makes: without its file descriptor in the environment there is
nobody to ask, so nothing of this works anywhere else.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

FD = "DEMO_CONTROL_FD"
ANSWER_SECONDS = 60

Request = Mapping[str, Any]


@dataclass(slots=True)
class Control:
    """The supervisor's end: every request is one line of JSON, and gets one sentence back."""

    act: Callable[[Request], str]
    _ours: socket.socket = field(init=False, repr=False)
    theirs: socket.socket = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._ours, self.theirs = socket.socketpair()

    def start(self) -> None:
        threading.Thread(target=self._serve, name="control", daemon=True).start()

    def close(self) -> None:
        self.theirs.close()
        self._ours.close()

    def _serve(self) -> None:
        with self._ours.makefile("rw") as lines:
            for line in lines:
                lines.write(json.dumps(self._answer(line)) + "\n")
                lines.flush()

    def _answer(self, line: str) -> str:
        try:
            return self.act(json.loads(line))
        except Exception as error:  # the page shows it; the demo goes on
            return f"That did not work: {error}"


_asking = threading.Lock()


def is_there() -> bool:
    """Say whether a demo supervises this process."""
    return FD in os.environ


def ask(request: Request) -> str:
    """Ask the supervisor for something; what it did, in a sentence."""
    with _asking, socket.socket(fileno=os.dup(int(os.environ[FD]))) as wire:
        wire.settimeout(ANSWER_SECONDS)
        with wire.makefile("rw") as lines:
            lines.write(json.dumps(request) + "\n")
            lines.flush()
            return str(json.loads(lines.readline()))
