"""The doctor finds out by trying that signals don't come through a transaction pooler."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .test_pooler import pooler

__all__ = ["pooler"]

ROOT = Path(__file__).resolve().parent.parent.parent
pytestmark = pytest.mark.pgbouncer


def findings(database: str, **settings: str) -> tuple[int, dict[str, tuple[str, str]]]:
    """The exit code, and level and sentence of each probe's last finding."""
    environment = {**os.environ, "DATABASE_URL": database, **settings}
    ended = subprocess.run(
        [sys.executable, "manage.py", "agentruns", "doctor", "--json"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    found = json.loads(ended.stdout)["findings"]
    return ended.returncode, {one["probe"]: (one["level"], one["sentence"]) for one in found}


def test_signals_through_a_pooler_are_an_error(pooler: str) -> None:
    code, found = findings(pooler)

    assert code == 1
    level, sentence = found["signals"]
    assert level == "error"
    assert sentence.startswith("A NOTIFY on 'default' did not arrive by LISTEN on 'default'")


def test_a_direct_way_beside_the_pooler_is_well(pooler: str, database: str) -> None:
    code, found = findings(pooler, LISTEN_DATABASE_URL=database)

    assert code == 0
    assert found["signals"][0] == "ok"
    assert found["pooler"][0] == "warning"
    assert "may use server-side cursors" in found["pooler"][1]
