"""Projects that are not like the demo."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from django.core.management import call_command

from tests.support import pointed_at, until

from .conftest import Database, client_of, client_with
from .servers import ROOT
from .test_access import session_of
from .told import Told


def test_a_project_without_sessions_with_its_own_users_under_a_prefix(
    kind: str, start: Callable[..., Any], database: Database
) -> None:
    with database.another() as url:
        site = "tests.streams.sites.bare"
        told = subprocess.run(
            [sys.executable, "-m", "tests.streams.sites.tell", "ada"],
            cwd=ROOT,
            env={**os.environ, "DJANGO_SETTINGS_MODULE": site, "DATABASE_URL": url},
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        assert told.returncode == 0, told.stderr
        run_id, token = told.stdout.split()
        prefix = ["--root-path", "/prefix"]
        server = start(kind, *prefix, site=site, DATABASE_URL=url)

        ada = client_with(server, {"X-Badge": "ada"}, path=PATHS[kind])
        assert ada.follow(f"/api/runs/{run_id}/events").seqs == [1, 2, 3]
        assert ada.close_code(f"/ws/runs/{run_id}") == 1000
        anybody = client_with(server, {}, path=PATHS[kind])
        assert anybody.follow(f"/api/runs/{run_id}/events?token={token}").ended
        with anybody.open(f"/api/runs/{run_id}/events") as response:
            assert response.status_code == 403  # its only class names no way to come in
        server.destroy()


PATHS = {"daphne": "/prefix", "uvicorn": ""}
"""Uvicorn puts its root path before what it is asked for, as behind a proxy that strips it."""


def test_a_queue_in_a_database_of_its_own_with_the_sessions_elsewhere(
    start: Callable[..., Any], database: Database, user: Any
) -> None:
    told = Told(user)
    told.say("a")
    with database.another() as url:
        with pointed_at(url):
            call_command("migrate", "sessions", verbosity=0)
            session = session_of(user)
        server = start("daphne", site="tests.streams.sites.split", OTHER_DATABASE_URL=url)
        client = client_with(server, {"Cookie": f"session={session}"})
        with client.stream(told.events) as stream:
            stream.until("content_delta", text="a")
            until(lambda: "agentruns hub" in database.backends(server.pid), "the hub to listen")
            assert len(database.backends(server.pid)) <= 4  # of the sessions, none is kept open
        server.destroy()


def test_several_processes_of_one_server_serve_the_same_runs(
    start: Callable[..., Any], user: Any
) -> None:
    server = start("uvicorn", "--workers", "2")
    told = Told(user)
    clients = [client_of(server, user) for _ in range(12)]
    with ThreadPoolExecutor(len(clients)) as pool:
        ends = [pool.submit(client.follow, told.events) for client in clients]
        for number in range(20):
            told.say(str(number))
        told.end()

        assert {end.result(90).text for end in ends} == {"".join(map(str, range(20)))}
    assert server.terminate() == 0
