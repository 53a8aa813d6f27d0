"""The PostgreSQL server that everything of one run shares, and the processes beside it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import psycopg
from psycopg import sql

from project.postgres import PostgresServer

from .measure import cpu_of

ROOT = Path(__file__).resolve().parent.parent
DEBIAN_15 = Path("/usr/lib/postgresql/15/bin")
SETTINGS = {
    "shared_buffers": "512MB",
    "max_wal_size": "4GB",
    "checkpoint_timeout": "30min",  # a checkpoint inside one round of two would be unfair
    "max_connections": "300",
}
"""Beside the defaults; fsync and synchronous_commit stay on."""
WAIT_SECONDS = 120


class Server:
    """A server of its own on loopback, in a folder that is removed at the end."""

    def __init__(self) -> None:
        if DEBIAN_15.exists():
            os.environ.setdefault("POSTGRES_BIN", str(DEBIAN_15))
        self.folder = Path(tempfile.gettempdir()) / f"agentruns-bench-{os.getpid()}"
        self._postgres = PostgresServer(self.folder / "pg", tcp=True, settings=SETTINGS)

    def __enter__(self) -> Self:
        self.folder.mkdir(mode=0o755)
        self._postgres.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._postgres.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, database: str) -> str:
        return self._postgres.url.rpartition("/")[0] + "/" + database

    def cpu(self) -> float:
        """CPU seconds that the server has used so far, ended backends included."""
        assert self._postgres.pid is not None
        return cpu_of(self._postgres.pid)

    @property
    def version(self) -> str:
        with self.connect("postgres") as connection:
            return connection.execute("SHOW server_version").fetchone()[0]  # type: ignore[index]

    def connect(self, database: str) -> psycopg.Connection[Any]:
        return psycopg.connect(self.url(database), autocommit=True)

    def create(self, database: str) -> None:
        """Make the database, anew where it exists."""
        name = sql.Identifier(database)
        with self.connect("postgres") as connection:
            connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(name))
            connection.execute(sql.SQL("CREATE DATABASE {}").format(name))

    def create_ours(self, database: str = "agentruns") -> None:
        """Make the database with the tables of the project, and the user 1."""
        self.create(database)
        self.call(
            "django",
            "migrate",
            "--verbosity",
            "0",
            DJANGO_SETTINGS_MODULE="benchmarks.settings",
            DATABASE_URL=self.url(database),
        )
        with self.connect(database) as connection:
            connection.execute(
                "INSERT INTO auth_user (id, username, password, is_superuser, first_name, "
                "last_name, email, is_staff, is_active, date_joined) "
                "VALUES (1, 'bench', '', false, '', '', '', false, true, now())"
            )

    def environment(self, **more: str) -> dict[str, str]:
        return {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "benchmarks.settings",
            "DATABASE_URL": self.url("agentruns"),
            "BENCH_PROCRASTINATE_URL": self.url("procrastinate"),
            "BENCH_BARE_URL": self.url("bare"),
            **more,
        }

    def call(self, module: str, *arguments: object, **environment: str) -> Any:
        """Run `python -m module arguments` to its end; the JSON of its last line."""
        done = subprocess.run(
            [sys.executable, "-m", module, *map(str, arguments)],
            cwd=ROOT,
            env=self.environment(**environment),
            capture_output=True,
            text=True,
            timeout=900,
        )
        if done.returncode:
            raise RuntimeError(f"{module} {arguments}: {done.stderr[-2000:]}")
        lines = done.stdout.strip().splitlines()
        return json.loads(lines[-1]) if lines and lines[-1][:1] in "{[" else None

    @contextmanager
    def running(self, module: str, *arguments: object, **environment: str) -> Iterator[int]:
        """Keep `python -m module arguments` running; its pid. It is told to end by SIGTERM."""
        log = self.folder / f"{module}-{time.monotonic_ns()}.log"
        with log.open("w") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", module, *map(str, arguments)],
                cwd=ROOT,
                env=self.environment(**environment),
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            try:
                yield process.pid
            except BaseException:
                print(log.read_text()[-3000:], file=sys.stderr)
                raise
            finally:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(40)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def wait_until(condition: Callable[[], bool], *, seconds: float = WAIT_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"nothing happened within {seconds:g} s")
        time.sleep(0.01)
