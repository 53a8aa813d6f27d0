"""The demo as a person meets it: one command, watched from outside."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import psutil
import psycopg
import pytest

from project.once import Client

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def clone() -> Iterator[Path]:
    """A copy of the project, so that the demo has a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="demo-", ignore_cleanup_errors=True) as name:
        clone = Path(name)
        clone.chmod(0o755)
        for folder in ("agentruns", "project", "templates"):
            shutil.copytree(ROOT / folder, clone / folder)
        for file in ("manage.py", "pyproject.toml", "uv.lock"):
            shutil.copy(ROOT / file, clone)
        yield clone


def start_demo(clone: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    return subprocess.Popen(
        [sys.executable, "manage.py", "demo", *arguments],
        cwd=clone,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def family(process: subprocess.Popen[str], clone: Path) -> list[psutil.Process]:
    """Return the demo's children, and the server that works in its folder."""
    members = psutil.Process(process.pid).children(recursive=True)
    pid_file = next(clone.glob(".demo/postgres/*/postmaster.pid"))
    return [*members, psutil.Process(int(pid_file.read_text().split()[0]))]


def is_gone(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_until_gone(processes: list[psutil.Process], seconds: float) -> list[psutil.Process]:
    psutil.wait_procs(processes, timeout=seconds)
    return [process for process in processes if not is_gone(process)]


def test_one_message_is_answered_and_nothing_stays_behind(clone: Path) -> None:
    demo = start_demo(clone, "--once", "What is 6 * 7?")

    reply, progress = demo.communicate(timeout=90)

    assert demo.returncode == 0, progress
    assert reply == "6 * 7 = 42\n"
    assert "calculator" in progress
    assert not list(clone.glob(".demo/postgres/*/postmaster.pid"))


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_demo_with_all_that_it_started(clone: Path, signum: int) -> None:
    demo = start_demo(clone)
    assert demo.stdout is not None
    address = demo.stdout.readline().split()[0]
    with urllib.request.urlopen(f"{address}login/", timeout=30) as page:
        assert page.status == 200
    started = family(demo, clone)
    assert len(started) == 4

    demo.send_signal(signum)
    _, progress = demo.communicate(timeout=60)

    assert demo.returncode == 0, progress
    assert wait_until_gone(started, 10) == []


def test_the_children_of_a_killed_demo_end_by_themselves(clone: Path) -> None:
    demo = start_demo(clone)
    assert demo.stdout is not None
    address = demo.stdout.readline().split()[0]
    with urllib.request.urlopen(f"{address}login/", timeout=30):
        *children, server = family(demo, clone)

    demo.kill()
    demo.communicate(timeout=60)

    assert wait_until_gone(children, 40) == []
    assert not is_gone(server)  # it is found by the next start, and stopped with it
    again = start_demo(clone, "--once", "hello")
    _, progress = again.communicate(timeout=90)
    assert again.returncode == 0, progress
    assert wait_until_gone([server], 10) == []


def test_a_killed_worker_is_replaced_and_the_demo_goes_on(clone: Path) -> None:
    demo = start_demo(clone)
    assert demo.stdout is not None
    assert demo.stderr is not None
    address = demo.stdout.readline().split()[0]
    children = psutil.Process(demo.pid).children()
    worker = next(child for child in children if "runworker" in child.cmdline())
    follow_until(demo.stderr, "20 slots")
    worker.kill()
    follow_until(demo.stderr, "starting another")

    with psycopg.connect((clone / ".demo/url").read_text().strip()) as connection:
        (token,) = connection.execute("SELECT key FROM authtoken_token").fetchone() or ("",)
    client = Client(int(address.rstrip("/").rpartition(":")[2]), token)
    *_, complete = client.events(client.send("What is 6 * 7?"))
    assert complete["status"] == "completed"
    demo.terminate()
    demo.communicate(timeout=60)


def follow_until(stream: IO[str], words: str) -> None:
    assert any(words in line for line in iter(stream.readline, "")), f"no line with {words!r}"


def test_a_failed_run_ends_with_one_sentence(clone: Path) -> None:
    os.environ["AGENTRUNS_DEFAULT_AGENT"] = "failing"
    try:
        demo = start_demo(clone, "--once", "hello")
    finally:
        del os.environ["AGENTRUNS_DEFAULT_AGENT"]

    reply, progress = demo.communicate(timeout=90)

    assert demo.returncode == 1
    assert reply == "This goes well until \n"
    assert progress.splitlines()[-1].startswith("CommandError: The run ended failed")


def test_a_port_in_use_is_named(clone: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        demo = start_demo(clone, "--port", str(port))
        _, progress = demo.communicate(timeout=90)

    assert demo.returncode == 1
    assert f"Port {port}" in progress.splitlines()[-1]


def test_a_database_that_is_out_of_reach_is_named(clone: Path) -> None:
    environment = {**os.environ, "DATABASE_URL": "postgresql://nobody@127.0.0.1:9/nowhere"}
    done = subprocess.run(
        [sys.executable, "manage.py", "demo", "--once", "hello"],
        cwd=clone,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == 1
    assert "The database of DATABASE_URL can't be used" in done.stderr.splitlines()[-1]
