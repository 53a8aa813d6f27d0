"""The server of these tests: its databases, and what can happen to it."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import dj_database_url
import psycopg
from django.db import connections

from project.postgres import PostgresServer

PATIENCE_SECONDS = 30.0
TEMPLATE = "agentruns_template"

T = TypeVar("T")


def until(condition: Callable[[], T], what: str, *, seconds: float = PATIENCE_SECONDS) -> T:
    """The first true value of the condition; fails naming `what` when none came in time."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:g} s in vain for {what}")
        time.sleep(0.02)
    return value


class Cluster:
    """One server, and a fresh database for each test, copied from a template."""

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self._numbers = itertools.count()
        self._template: str | None = None

    def url(self, name: str) -> str:
        return self.server.url.rsplit("/", 1)[0] + f"/{name}"

    def create(self) -> str:
        if self._template is None:
            name, of = TEMPLATE, "template1"
        else:
            name, of = f"test_{next(self._numbers)}", TEMPLATE
        self.execute(f"CREATE DATABASE {name} TEMPLATE {of}")
        return self.url(name)

    def freeze_template(self) -> None:
        self._template = TEMPLATE

    def drop(self, url: str) -> None:
        self.execute(f"DROP DATABASE {url.rsplit('/', 1)[1]} WITH (FORCE)")

    def execute(self, statement: str) -> None:
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(statement)

    def restart(self) -> None:
        """Kill every backend and start again, as after a crash."""
        code, output = self.server._control("restart", "-m", "immediate", "-w", "-t", "30")
        assert code == 0, output
        connections["default"].close()

    @contextlib.contextmanager
    def down(self) -> Iterator[None]:
        """Gone for as long as the block lasts."""
        assert self.server._control("stop", "-m", "immediate", "-w")[0] == 0
        try:
            yield
        finally:
            self.restart()  # which starts with the same options where nothing runs


@contextlib.contextmanager
def pointed_at(url: str) -> Iterator[None]:
    """Have this process's default connection lead to `url`."""
    given = connections.settings["default"]
    before = dict(given)
    connections["default"].close()
    given.update(dj_database_url.parse(url))
    try:
        yield
    finally:
        connections["default"].close()
        given.clear()
        given.update(before)
