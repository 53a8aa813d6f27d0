"""Processes under test: web servers of both kinds, and workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from tests.support import PATIENCE_SECONDS, free_port, is_open, until

ROOT = Path(__file__).resolve().parent.parent.parent
SETTINGS: dict[str, Any] = {"KEEPALIVE_SECONDS": 1, "DEFAULT_AGENT": None}


class Process:
    """A child with its log in a file; `settings` are keys of `AGENTRUNS`, or variables."""

    def __init__(self, command: Sequence[str], log: Path, settings: dict[str, Any]) -> None:
        self.log_file = log
        environment = {k: v for k, v in os.environ.items() if not k.startswith("AGENTRUNS_")}
        environment["PYTHONUNBUFFERED"] = "1"
        for key, value in {**SETTINGS, **settings}.items():
            name = f"AGENTRUNS_{key}" if key.endswith("_SECONDS") or key in NAMES else key
            environment[name] = "" if value is None else str(value)
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, *command],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self.pid = self.process.pid

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def wait_for_log(self, text: str) -> None:
        def seen() -> bool:
            alive = self.is_alive
            assert text in self.log or alive, f"it ended:\n{self.log}"
            return text in self.log

        until(seen, f"{text!r} in {self.log_file}")

    def terminate(self) -> int:
        """Tell it to end; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_SECONDS)

    def destroy(self) -> None:
        if self.is_alive:
            for child in psutil.Process(self.pid).children(recursive=True):
                child.kill()
            self.process.kill()
            self.process.wait(PATIENCE_SECONDS)


NAMES = {"DEFAULT_AGENT", "DATABASE", "LISTEN_DATABASE"}


class WebServer(Process):
    """Daphne or uvicorn with the test site."""

    def __init__(
        self, kind: str, log: Path, settings: dict[str, Any], options: Sequence[str] = ()
    ) -> None:
        self.kind = kind
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        site = settings.pop("site", "tests.streams.sites.standard")
        application = settings.pop("application", "tests.streams.sites.asgi:application")
        host = "-b" if kind == "daphne" else "--host"
        quiet = ["-v", "1"] if kind == "daphne" else ["--no-access-log"]
        address = [host, "127.0.0.1", "-p" if kind == "daphne" else "--port", str(self.port)]
        super().__init__(
            ["-m", kind, *address, *quiet, *options, application],
            log,
            {"DJANGO_SETTINGS_MODULE": site, **settings},
        )

    def wait_until_open(self) -> None:
        def is_open() -> bool:
            assert self.is_alive, f"{self.kind} ended:\n{self.log}"
            return self.is_open()

        until(is_open, f"{self.kind} to listen")

    def is_open(self) -> bool:
        return is_open(self.port)

    @property
    def threads(self) -> int:
        return psutil.Process(self.pid).num_threads()

    @property
    def memory(self) -> int:
        """Resident bytes."""
        return psutil.Process(self.pid).memory_info().rss  # type: ignore[no-any-return]

    @property
    def connections(self) -> int:
        """Connections of clients that are open on the server's side."""
        found = psutil.Process(self.pid).net_connections("tcp")
        open_ones = ("ESTABLISHED", "CLOSE_WAIT")
        return sum(c.laddr.port == self.port and c.status in open_ones for c in found)
