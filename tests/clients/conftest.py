"""Real servers and a worker, and the clients' own packages."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.core.management import call_command
from rest_framework.authtoken.models import Token

from project.postgres import PostgresServer
from tests.conftest import find_program, missing
from tests.support import PATIENCE_SECONDS, free_port, is_open, pointed_at, until

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
MIN_NODE = 20
SETTINGS = {
    "DJANGO_SETTINGS_MODULE": "tests.clients.settings",
    "PYTHONUNBUFFERED": "1",
    "AGENTRUNS_DEFAULT_AGENT": "story",
    "AGENTRUNS_KEEPALIVE_SECONDS": "1",
    "AGENTRUNS_LEASE_SECONDS": "3",
    "AGENTRUNS_HEARTBEAT_SECONDS": "1",
    "AGENTRUNS_GRACE_SECONDS": "1",
    "AGENTRUNS_REAP_SECONDS": "0.5",
}
SERVERS = {
    "daphne": ("-m", "daphne", "-v", "1", "-b", "127.0.0.1", "-p"),
    "uvicorn": ("-m", "uvicorn", "--no-access-log", "--host", "127.0.0.1", "--port"),
}


class Site:
    """A database, a web server of each kind and a worker, on it."""

    def __init__(self, database_url: str, logs: Path) -> None:
        self._environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("AGENTRUNS_")},
            **SETTINGS,
            "DATABASE_URL": database_url,
        }
        self._logs = logs
        self._processes: list[subprocess.Popen[bytes]] = []
        self.ports: dict[str, int] = {}

    def open(self) -> None:
        self.ports = {kind: self._serve(kind) for kind in SERVERS}
        self.work("story,endless,faulty,curious")
        for kind, port in self.ports.items():
            until(lambda port=port: self._is_open(port), f"{kind} to listen")

    def _is_open(self, port: int) -> bool:
        assert all(process.poll() is None for process in self._processes), self.log
        return is_open(port)

    def work(self, agents: str) -> subprocess.Popen[bytes]:
        return self._start("worker", "manage.py", "runworker", "--agents", agents)

    def _serve(self, kind: str) -> int:
        port = free_port()
        self._start(kind, *SERVERS[kind], str(port), "project.asgi:application")
        return port

    def _start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        with (self._logs / f"{len(self._processes)}-{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, *command],
                cwd=ROOT,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._processes.append(process)
        return process

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    @property
    def log(self) -> str:
        return "".join(path.read_text(errors="replace") for path in self._logs.iterdir())


@pytest.fixture(scope="session")
def running_site(django_db_blocker: Any, tmp_path_factory: Any) -> Iterator[tuple[Site, str]]:
    with tempfile.TemporaryDirectory(prefix="clients-", ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o755)  # the account of the server must get in
        with PostgresServer(Path(name) / "server", tcp=True, settings={"fsync": "off"}) as server:
            with django_db_blocker.unblock(), pointed_at(server.url):
                call_command("migrate", verbosity=0)
            site = Site(server.url, tmp_path_factory.mktemp("logs"))
            try:
                site.open()
                yield site, server.url
            finally:
                site.close()


@pytest.fixture
def site(running_site: tuple[Site, str], django_db_blocker: Any) -> Iterator[Site]:
    """The site; Django's connection in this process leads to its database."""
    found, url = running_site
    with django_db_blocker.unblock(), pointed_at(url):
        yield found
    print(found.log)  # shown where the test failed
    assert "Traceback" not in found.log


@pytest.fixture
def token(site: Site) -> str:
    """A new user's."""
    return new_token()


def new_token() -> str:
    name = f"user-{time.monotonic_ns()}"
    return Token.objects.create(user=get_user_model().objects.create(username=name)).key


@pytest.fixture(scope="session")
def modules() -> Path:
    """A folder with the clients' packages, as package-lock.json pins them, and our drivers."""
    node = find_program("node")
    if node is None:
        missing("node is not installed")
    assert node is not None
    version = subprocess.check_output([node, "--version"], text=True).strip()
    if int(version.removeprefix("v").partition(".")[0]) < MIN_NODE:
        missing(f"Node.js {MIN_NODE} or newer is needed, and this is {version}")
    if shutil.which("npm") is None:
        missing("npm is not installed")
    pinned = [HERE / name for name in ("package.json", "package-lock.json")]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in pinned)).hexdigest()[:12]
    folder = ROOT / ".cache" / f"clients-{digest}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _install(folder, pinned)
        for driver in HERE.glob("*.mjs"):
            shutil.copy(driver, folder)
    return folder


def _install(folder: Path, pinned: list[Path]) -> None:
    if (folder / "installed").exists():
        return
    for path in pinned:
        shutil.copy(path, folder)
    command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        missing(f"npm could not install the clients: {done.stderr[-500:]}")
    (folder / "installed").touch()


class Driver:
    """A client's driver under Node: one scenario, told as JSON."""

    def __init__(self, folder: Path, script: str, told: dict[str, Any]) -> None:
        node = find_program("node")
        assert node is not None
        self._process = subprocess.Popen(
            [node, script, json.dumps(told)],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def result(self) -> Any:
        try:
            output, errors = self._process.communicate(timeout=PATIENCE_SECONDS)
        finally:
            self._process.kill()
        assert self._process.returncode == 0, errors
        return json.loads(output.rstrip("\n").split("\n")[-1])


@pytest.fixture
def drive(modules: Path, site: Site, token: str, tmp_path: Path) -> Callable[..., Driver]:
    """Start a scenario against one of the servers; `gate` is a file that does not exist yet."""

    def drive(script: str, scenario: str, kind: str = "uvicorn", **told: Any) -> Driver:
        common = {
            "scenario": scenario,
            "origin": f"127.0.0.1:{site.ports[kind]}",
            "token": token,
            "folder": str(tmp_path),
        }
        return Driver(modules, script, {**common, **told})

    return drive
