"""A PostgreSQL server of these tests' own, a fresh database for each test, and workers on it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.core.management import call_command

from agentruns.models import Conversation
from project.postgres import PostgresServer
from tests import agents as agents  # registers them
from tests.support import pointed_at

from .cluster import Cluster
from .worker import WorkerProcess


@pytest.fixture(scope="session")
def cluster(django_db_blocker: Any) -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="processes-", ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o755)  # the account of the server must get in
        # Commits survive an immediate restart, which is not the machine's.
        settings = {"fsync": "off", "full_page_writes": "off"}
        with PostgresServer(Path(name) / "server", tcp=True, settings=settings) as server:
            cluster = Cluster(server)
            with django_db_blocker.unblock(), pointed_at(cluster.create()):
                call_command("migrate", verbosity=0)
                get_user_model().objects.create(username="somebody")
            cluster.freeze_template()
            yield cluster


@pytest.fixture
def database(cluster: Cluster, django_db_blocker: Any) -> Iterator[str]:
    """The URL of a database with all tables and one user, where Django's connection leads."""
    url = cluster.create()
    with django_db_blocker.unblock(), pointed_at(url):
        yield url
    cluster.drop(url)


@pytest.fixture
def start(database: str, tmp_path: Path) -> Iterator[Callable[..., WorkerProcess]]:
    """Start a worker process, with settings as keywords; it is killed when the test ends."""
    started: list[WorkerProcess] = []

    def start(*arguments: str, ready: bool = True, **settings: Any) -> WorkerProcess:
        log = tmp_path / f"worker-{len(started)}.log"
        worker = WorkerProcess(settings.pop("database", database), log, arguments, settings)
        started.append(worker)
        if ready:
            worker.wait_for_log("slots, agents")
        return worker

    yield start
    for worker in started:
        worker.destroy()
        print(f"--- log of worker {worker.pid}\n{worker.log}")  # shown where the test failed


@pytest.fixture
def conversation(database: str) -> Conversation:
    return Conversation.objects.create(user=get_user_model().objects.get())
