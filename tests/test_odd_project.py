"""The HTTP tests in a project unlike the demo, in a process of its own: settings are read once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LIMIT_SECONDS = 300
EVERYTHING = [
    *(f"tests/http/test_{name}.py" for name in ("runs", "conversations", "stop_and_retry")),
    *(f"tests/http/test_{name}.py" for name in ("events_route", "idempotency", "transactions")),
    "tests/test_events.py",
]
ON_CONNECTIONS_OF_THEIR_OWN = "parallel or meet"


def run(*arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.odd.settings", **environment},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS - 10,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(LIMIT_SECONDS)
@pytest.mark.parametrize(
    ("user_model", "tests"), [("UUIDUser", EVERYTHING), ("TextUser", EVERYTHING[:1])]
)
def test_the_api_does_not_depend_on_the_project(user_model: str, tests: list[str]) -> None:
    passed = run(
        *("-m", "pytest", "-q", "-p", "no:cacheprovider", "--create-db"),
        *("--ds=tests.odd.settings", "-k", f"not ({ON_CONNECTIONS_OF_THEIR_OWN})", *tests),
        ODD_USER=user_model,
    )

    assert " passed" in passed


def test_no_project_needs_a_migration_of_its_own() -> None:
    run("manage.py", "makemigrations", "--check", "--dry-run", "agentruns")
