"""The server of these tests: its databases, and what can happen to it."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import psycopg
from django.db import connections

from project.postgres import PostgresServer
from tests.support import until

TEMPLATE = "agentruns_template"


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


class Standby:
    """A second server that follows the cluster's, until it is promoted."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._server = cluster.server
        self._data = self._server._data.parent / "standby"
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self._port = probe.getsockname()[1]

    def __enter__(self) -> Standby:
        address = self._server._address()
        assert address is not None
        source = f"host={address.sockets} port={address.port} user=postgres"
        copy = ("-D", self._data, "-R", "-X", "stream", "-c", "fast", "-d", source)
        self._run("pg_basebackup", *copy)
        options = (
            f"-c port={self._port} -c listen_addresses=127.0.0.1 -c max_connections=200 "
            f"-c unix_socket_directories={self._data.parent} -c fsync=off"
        )
        log = self._data.with_suffix(".log")
        self._run("pg_ctl", "-D", self._data, "-l", log, "-w", "start", "-o", options)
        self._cluster.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        self._cluster.execute("SELECT pg_reload_conf()")
        until(self._is_synchronous, "the standby to follow")  # then no commit is lost with it
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.execute("ALTER SYSTEM RESET synchronous_standby_names")
        self._cluster.execute("SELECT pg_reload_conf()")
        self._run("pg_ctl", "-D", self._data, "-m", "immediate", "-w", "stop")
        shutil.rmtree(self._data)

    def _is_synchronous(self) -> bool:
        with psycopg.connect(self._cluster.url("postgres"), autocommit=True) as connection:
            found = connection.execute("SELECT sync_state FROM pg_stat_replication").fetchall()
            return found == [("sync",)]

    def promote(self) -> None:
        self._run("pg_ctl", "-D", self._data, "-w", "promote")

    def url(self, primary: str) -> str:
        """The URL of the same database on the standby."""
        return primary.replace(f":{urlsplit(primary).port}/", f":{self._port}/")

    def url_of_both(self, primary: str) -> str:
        """A URL that leads to whichever of the two takes writes."""
        parts = urlsplit(primary)
        login = primary.split("@")[0]
        return (
            f"{login}@{parts.path}?host=127.0.0.1,127.0.0.1&port={parts.port},{self._port}"
            "&target_session_attrs=read-write"
        )

    def _run(self, program: str, *arguments: object) -> None:
        command = [self._server._binaries / program, *arguments]
        code, output = self._server._account.run(command)
        assert code == 0, output
