"""A pytest plugin that has a PostgreSQL server running before Django's settings are read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from project.postgres import FAST, PostgresError, PostgresServer

FOLDER = Path(__file__).resolve().parent.parent / ".cache" / "tests"
server = PostgresServer(FOLDER, settings=FAST)


@pytest.hookimpl(wrapper=True)  # a wrapper runs before pytest-django, which reads the settings
def pytest_load_initial_conftests() -> Iterator[None]:
    if not os.environ.get("DATABASE_URL"):  # xdist's workers inherit it
        try:
            os.environ["DATABASE_URL"] = server.start()
        except PostgresError as error:
            raise pytest.UsageError(str(error)) from None
    return (yield)


def pytest_unconfigure() -> None:
    server.stop()
