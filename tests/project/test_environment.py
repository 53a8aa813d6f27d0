"""What environment variables make of the settings, and the first moments of a command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from project.environment import agentruns_settings, secret_key

ROOT = Path(__file__).resolve().parent.parent.parent
SIGTERM_BIT = 1 << (signal.SIGTERM - 1)


def test_variables_become_settings_of_the_same_name() -> None:
    given = {
        "AGENTRUNS_LEASE_SECONDS": "4.5",
        "AGENTRUNS_CONCURRENCY": "3",
        "AGENTRUNS_DEFAULT_AGENT": "",
        "AGENTRUNS_LISTEN_DATABASE": "listen",
        "AGENTRUNS_NO_SUCH_KEY": "1",
        "LEASE_SECONDS": "9",
    }

    assert agentruns_settings(given) == {
        "LEASE_SECONDS": 4.5,
        "CONCURRENCY": 3,
        "DEFAULT_AGENT": None,
        "LISTEN_DATABASE": "listen",
    }


def test_what_is_no_number_is_left_to_the_system_check() -> None:
    assert agentruns_settings({"AGENTRUNS_LEASE_SECONDS": "long"}) == {"LEASE_SECONDS": "long"}


def test_the_secret_key_is_made_once_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "demo" / "secret_key"

    key = secret_key(file)

    assert len(key) > 50
    assert secret_key(file) == key
    assert file.stat().st_mode & 0o077 == 0


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_a_worker_that_is_told_to_end_while_it_starts_ends_with_0() -> None:
    worker = subprocess.Popen([sys.executable, "manage.py", "runworker"], cwd=ROOT)
    try:
        status = Path(f"/proc/{worker.pid}/status")
        deadline = time.monotonic() + 20
        while not caught_signals(status.read_text()) & SIGTERM_BIT:
            assert time.monotonic() < deadline
            os.sched_yield()
        worker.send_signal(signal.SIGTERM)

        assert worker.wait(timeout=20) == 0
    finally:
        worker.kill()
        worker.wait()


def caught_signals(status: str) -> int:
    (line,) = (line for line in status.splitlines() if line.startswith("SigCgt:"))
    return int(line.split()[1], 16)
