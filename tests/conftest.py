"""What all tests share."""

from __future__ import annotations

import importlib.util
import os
import shutil
from urllib.parse import quote, urlencode

import pytest
from django.db import connection

SYSTEM_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
PROGRAMS = {
    "chromium": ("chromium", "chromium-browser", "google-chrome"),
    "nginx": ("nginx",),
    "node": ("node",),
    "pgbouncer": ("pgbouncer",),
}


collect_ignore: list[str] = []
if not importlib.util.find_spec("playwright") and not os.environ.get("AGENTRUNS_REQUIRE_ALL"):
    collect_ignore = ["e2e"]  # its modules import playwright


def find_program(marker: str) -> str | None:
    """Return the path of the program that tests with this marker need."""
    found = (shutil.which(name, path=SYSTEM_PATH) for name in PROGRAMS[marker])
    return next((path for path in found if path), None)


def missing(what: str) -> None:
    """Skip the test for something that isn't here; fail it where all must be here."""
    if os.environ.get("AGENTRUNS_REQUIRE_ALL"):
        pytest.fail(f"{what}, and AGENTRUNS_REQUIRE_ALL is set")
    pytest.skip(what)


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in PROGRAMS:
        if item.get_closest_marker(marker) and find_program(marker) is None:
            missing(f"{PROGRAMS[marker][0]} is not installed")
    if item.get_closest_marker("chromium") and not importlib.util.find_spec("playwright"):
        missing("playwright is not installed")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.option.markexpr:
        soaking = [item for item in items if item.get_closest_marker("soak")]
        config.hook.pytest_deselected(items=soaking)
        items[:] = [item for item in items if item not in soaking]


@pytest.fixture
def database_url(transactional_db: None) -> str:
    """Return the URL of the test database, for processes that a test starts."""
    options = connection.get_connection_params()
    login = quote(options.get("user") or "", safe="")
    if password := options.get("password"):
        login += f":{quote(password, safe='')}"
    place = {key: options[key] for key in ("host", "port") if options.get(key)}
    return f"postgresql://{login}@/{quote(options['dbname'], safe='')}?{urlencode(place)}"
