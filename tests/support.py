"""What tests of real processes share: waiting, ports, and where Django's connection leads."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import dj_database_url
from django.db import connections

PATIENCE_SECONDS = 90.0
"""Longer than anything takes on a busy machine: only a test that fails waits so long."""

T = TypeVar("T")


def until(condition: Callable[[], T], what: str, *, seconds: float = PATIENCE_SECONDS) -> T:
    """The first true value of the condition; fails naming `what` when none came in time."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:g} s in vain for {what}")
        time.sleep(0.02)
    return value


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def is_open(port: int) -> bool:
    """Say whether somebody listens on this port of the machine."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextlib.contextmanager
def pointed_at(url: str) -> Iterator[None]:
    """Have this process's default connection lead to `url`."""
    given = connections.settings["default"]
    before = dict(given)
    connections["default"].close()
    given.update(dj_database_url.parse(url))
    del connections["default"]
    try:
        yield
    finally:
        connections["default"].close()
        given.clear()
        given.update(before)
        del connections["default"]
