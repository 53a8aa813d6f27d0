"""Workers behind Debian's pgbouncer in transaction mode."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from agentruns import stop_run
from agentruns.models import AgentRun
from agentruns.plans import FEW_USES
from tests.conftest import find_program
from tests.support import is_open, pointed_at, until

from .history import check_all, counted, ended, enqueue, outcome, reply_of, started, text_of
from .worker import WorkerProcess

Start = Callable[..., WorkerProcess]
pytestmark = pytest.mark.pgbouncer

CONFIGURATION = """
[databases]
* = host={server.hostname} port={server.port} user={server.username} password={server.password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 6
logfile = {folder}/log
"""


@pytest.fixture
def pooler(database: str) -> Iterator[str]:
    """The URL of the test's database through pgbouncer."""
    server = urlsplit(database)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="pgbouncer-") as name:
        folder = Path(name)
        folder.chmod(0o777)  # it runs as nobody
        (folder / "ini").write_text(CONFIGURATION.format(server=server, port=port, folder=folder))
        program = find_program("pgbouncer")
        assert program is not None
        account = ["-u", "nobody"] if os.geteuid() == 0 else []
        process = subprocess.Popen([program, "-q", *account, str(folder / "ini")])
        try:
            until(lambda: is_open(port), "pgbouncer")
            yield f"postgresql://anybody:any@127.0.0.1:{port}{server.path}"
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(10)


def test_behind_a_pooler_with_a_direct_listener_all_is_as_ever(
    start: Start, database: str, pooler: str, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    settings = {"LISTEN_DATABASE": "listen", "LISTEN_DATABASE_URL": database}
    slow = {"LEASE_SECONDS": 3600, "HEARTBEAT_SECONDS": 1700, "POLL_SECONDS": 1700}
    start(database=pooler, **settings, **slow)
    stopped = started(enqueue(None, "count"))  # by the hint: the poll is far away
    runs = [started(enqueue(None, "count", gate=str(gate))) for _ in range(10)]
    following = [enqueue(run.conversation, "reader") for run in runs]
    stop_run(stopped)

    assert outcome(ended(stopped)) == ("cancelled", None)
    gate.touch()
    for run in runs:
        assert outcome(ended(run)) == ("completed", None)
        assert counted(reply_of(run) or "")
    assert {outcome(ended(run)) for run in following} == {("completed", None)}
    check_all([run.conversation for run in runs])


def test_behind_a_pooler_without_a_listener_runs_are_found_by_polling(
    start: Start, pooler: str
) -> None:
    worker = start(database=pooler, LISTEN_DATABASE=None, POLL_SECONDS=0.3)
    run = started(enqueue(None, "count"))
    stop_run(run)

    assert outcome(ended(run)) == ("cancelled", None)
    assert "hub:" not in worker.log
    assert worker.drain() == 0


def test_a_listener_behind_a_pooler_is_found_deaf_said_once_and_replaced_by_polls(
    start: Start, pooler: str
) -> None:
    worker = start(database=pooler, POLL_SECONDS=0.3)
    run = started(enqueue(None, "count"))
    worker.wait_for_log("takes LISTEN but hears nothing")
    stop_run(run)

    assert outcome(ended(run)) == ("cancelled", None)
    assert counted(reply_of(run) or "")
    assert worker.count("takes LISTEN but hears nothing") == 1


def test_a_killed_workers_run_is_reaped_through_a_pooler(start: Start, pooler: str) -> None:
    victim = start(database=pooler, LISTEN_DATABASE=None, POLL_SECONDS=0.3)
    lost = started(enqueue(None, "count"))
    victim.kill()
    said = text_of(lost)
    start(database=pooler, LISTEN_DATABASE=None, POLL_SECONDS=0.3)

    assert outcome(ended(lost)) == ("failed", "worker_lost")
    assert (reply_of(lost) or "").startswith(said)


def test_turns_that_are_enqueued_through_a_pooler_leave_nothing_in_its_sessions(
    pooler: str,
) -> None:
    with pointed_at(pooler), psycopg.connect(pooler) as other:
        for _ in range(3 * FEW_USES):
            enqueue(None, "count")
        [(left,)] = other.execute(  # in the session that they had, which it keeps from now on
            "SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'agentruns%'"
        )
        for _ in range(3):
            enqueue(None, "count")
        assert AgentRun.objects.count() == 3 * FEW_USES + 3
    assert left == 0
