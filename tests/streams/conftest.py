"""A PostgreSQL server, a web server of each kind and a worker of these tests' own."""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dj_database_url
import psutil
import psycopg
import pytest
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.db import connections
from rest_framework.authtoken.models import Token

from project.postgres import PostgresServer
from tests.support import pointed_at

from . import agents as agents  # registers them
from .servers import Process, WebServer
from .viewers import Client

_names = itertools.count()
_clients: list[Client] = []


class Database:
    """The server that the tests' processes use, and what can happen to it."""

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self.url = server.url

    def execute(self, statement: str, *params: object) -> list[Any]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement, params)
            return cursor.fetchall() if cursor.description else []

    def terminate(self, condition: str = "true") -> int:
        """End the backends for which the condition holds; how many."""
        rows = self.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            f" WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND {condition}"
        )
        return len(rows)

    def backends(self, pid: int) -> list[str]:
        """The connections of a process, by application name."""
        ports = self.ports(pid)
        rows = self.execute("SELECT application_name, client_port FROM pg_stat_activity")
        return sorted(name for name, port in rows if port in ports)

    def ports(self, pid: int) -> set[int]:
        """From which ports the process is connected to the server."""
        connections = psutil.Process(pid).net_connections("tcp")
        return {c.laddr.port for c in connections if c.raddr and c.raddr.port == self.port}

    @property
    def port(self) -> int:
        return int(dj_database_url.parse(self.url)["PORT"])

    def restart(self) -> None:
        """Kill every backend and start again, as after a crash."""
        code, output = self.server._control("restart", "-m", "immediate", "-w", "-t", "30")
        assert code == 0, output

    @contextlib.contextmanager
    def another(self) -> Iterator[str]:
        """The URL of a second database, empty."""
        name = f"another_{next(_names)}"
        self.execute(f"CREATE DATABASE {name}")
        try:
            yield self.url.rsplit("/", 1)[0] + f"/{name}"
        finally:
            self.execute(f"DROP DATABASE {name} WITH (FORCE)")

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        assert self.server._control("stop", "-m", "immediate", "-w")[0] == 0
        try:
            yield
        finally:
            self.restart()  # with the same options
            connections["default"].close()  # it was cut off as well


@pytest.fixture(scope="session")
def database(django_db_blocker: Any) -> Iterator[Database]:
    with tempfile.TemporaryDirectory(prefix="streams-", ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o755)  # the account of the server must get in
        # Commits survive an immediate restart, which is not the machine's.
        settings = {"fsync": "off", "full_page_writes": "off"}
        with PostgresServer(Path(name) / "server", tcp=True, settings=settings) as server:
            with django_db_blocker.unblock(), pointed_at(server.url):
                call_command("migrate", verbosity=0)
            yield Database(server)


@pytest.fixture(autouse=True)
def tables(database: Database, django_db_blocker: Any) -> Iterator[None]:
    """Django's connection in this process leads to the tables that the servers use."""
    with django_db_blocker.unblock(), pointed_at(database.url):
        yield
    while _clients:
        _clients.pop().http.close()


@contextlib.contextmanager
def starter(database: Database, logs: Path) -> Iterator[Callable[..., Any]]:
    started: list[Process] = []

    def start(kind: str, *options: str, wait: bool = True, **settings: Any) -> Process:
        settings = {"DATABASE_URL": database.url, **settings}
        log = logs / f"{kind}-{len(started)}.log"
        process: Process
        if kind == "worker":
            settings.setdefault("DJANGO_SETTINGS_MODULE", "tests.streams.sites.standard")
            process = Process(["manage.py", "runworker", *options], log, settings)
        else:
            process = WebServer(kind, log, settings, options)
        started.append(process)
        if wait:
            process.wait_for_log("slots") if kind == "worker" else process.wait_until_open()
        return process

    try:
        yield start
    finally:
        for process in started:
            process.destroy()


@pytest.fixture(scope="session")
def shared(database: Database, tmp_path_factory: Any) -> Iterator[dict[str, WebServer]]:
    """One server of each kind, for tests that do them no harm."""
    with starter(database, tmp_path_factory.mktemp("servers")) as start:
        # The poll is far away: only hints tell these servers of anything.
        servers = {
            kind: start(kind, wait=False, POLL_SECONDS=600) for kind in ("daphne", "uvicorn")
        }
        for server in servers.values():
            server.wait_until_open()
        yield servers


@pytest.fixture(scope="session")
def worker(database: Database, tmp_path_factory: Any) -> Iterator[None]:
    """One worker, that knows the agents of this folder."""
    with starter(database, tmp_path_factory.mktemp("worker")) as start:
        start("worker")
        yield


@pytest.fixture
def start(database: Database, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Start a process of this test's own: `daphne`, `uvicorn` or `worker`."""
    with starter(database, tmp_path) as start:
        yield start


@pytest.fixture(params=["daphne", "uvicorn"])
def kind(request: Any) -> str:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def server(kind: str, shared: dict[str, WebServer]) -> WebServer:
    return shared[kind]


@pytest.fixture
def user(tables: None) -> Any:
    return new_user()


def new_user(name: str = "viewer") -> Any:
    return get_user_model().objects.create(username=f"{name}-{next(_names)}")


def client_of(server: WebServer, user: Any) -> Client:
    token, _ = Token.objects.get_or_create(user=user)
    return client_with(server, {"Authorization": f"Token {token.key}"})


def client_with(server: WebServer, headers: dict[str, str], *, path: str = "") -> Client:
    client = Client(server, headers, path=path)
    _clients.append(client)
    return client


@pytest.fixture
def client(server: WebServer, user: Any) -> Client:
    return client_of(server, user)
