"""A worker process under test."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import psutil

from tests.support import PATIENCE_SECONDS, until

ROOT = Path(__file__).resolve().parent.parent.parent
QUICK = {
    "LEASE_SECONDS": 3,
    "HEARTBEAT_SECONDS": 1,
    "GRACE_SECONDS": 1,
    "REAP_SECONDS": 0.5,
    "POLL_SECONDS": 5,
    "STOP_GRACE_SECONDS": 1,
    "DRAIN_SECONDS": 10,
    "DEFAULT_AGENT": None,
}


class WorkerProcess:
    """`manage.py runworker` with short leases and its log in a file."""

    def __init__(
        self, database: str, log: Path, arguments: Iterable[str], settings: Mapping[str, Any]
    ) -> None:
        self.log_file = log
        settings = dict(settings)
        module = settings.pop("settings_module", "tests.worker_settings")
        environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("AGENTRUNS_")},
            "DJANGO_SETTINGS_MODULE": str(module),
            "DATABASE_URL": database,
            "PYTHONUNBUFFERED": "1",
        }
        for key, value in {**QUICK, **settings}.items():
            name = key if key == "LISTEN_DATABASE_URL" else f"AGENTRUNS_{key}"
            environment[name] = "" if value is None else str(value)
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "manage.py", "runworker", *arguments],
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

    def count(self, pattern: str) -> int:
        return len(re.findall(pattern, self.log))

    def wait_for_log(
        self, pattern: str, *, times: int = 1, seconds: float = PATIENCE_SECONDS
    ) -> None:
        def seen() -> bool:
            # What it said last comes first: a worker that died has said all.
            died = self.process.poll() is not None
            if self.count(pattern) >= times:
                return True
            assert not died, f"the worker ended with {self.process.returncode}:\n{self.log}"
            return False

        until(seen, f"{pattern!r} in the log of worker {self.pid}", seconds=seconds)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def freeze(self) -> None:
        self.signal(signal.SIGSTOP)
        stopped = psutil.STATUS_STOPPED
        until(lambda: psutil.Process(self.pid).status() == stopped, "the process to stand still")

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.wait(10)

    def ended(self, *, seconds: float = 40) -> int:
        """Its exit code, when it has ended."""
        return self.process.wait(seconds)

    def drain(self) -> int:
        """Tell it to end; its exit code."""
        self.signal(signal.SIGTERM)
        return self.ended()

    @property
    def cpu_seconds(self) -> float:
        times = psutil.Process(self.pid).cpu_times()
        return times.user + times.system

    def destroy(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)
