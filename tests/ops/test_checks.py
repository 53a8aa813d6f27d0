"""Each system check: its id, what brings it up, and that it says what to do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.conf import settings as project_settings
from django.core import checks
from django.test import override_settings

import agentruns
from agentruns.agents import _agents
from agentruns.checks import agentruns_before_channels

DOCS = Path(agentruns.__file__).parent.parent / "docs"


def found() -> dict[str, Any]:
    """The messages of agentruns, by id."""
    messages = [message for message in checks.run_checks() if "agentruns" in str(message.id)]
    assert all(message.hint for message in messages)
    return {str(message.id): message for message in messages}


def database(**changed: Any) -> Any:
    default = {**project_settings.DATABASES["default"], **changed}
    return override_settings(DATABASES={**project_settings.DATABASES, "default": default})


def test_the_project_is_without_complaints() -> None:
    assert found() == {}


def test_channels_before_agentruns(monkeypatch: Any) -> None:
    configs = {config.name: config for config in apps.get_app_configs()}
    swapped = [configs["channels"], configs["agentruns"]]
    monkeypatch.setattr(apps, "get_app_configs", lambda: swapped)

    [message] = agentruns_before_channels()

    assert message.id == "agentruns.E001"
    assert message.hint


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"LEASE_SECOND": 30}, "Did you mean 'LEASE_SECONDS'?"),
        ({"CONCURRENCY": 0}, "above 0"),
        ({"HEARTBEAT_SECONDS": 20}, "Use less than 15"),
        ([], "AGENTRUNS = {...}"),
    ],
)
def test_settings_that_cannot_work(given: Any, words: str) -> None:
    with override_settings(AGENTRUNS=given):
        assert words in found()["agentruns.E002"].hint


@pytest.mark.filterwarnings("ignore:Overriding setting DATABASES")
def test_another_database_than_postgresql() -> None:
    with database(ENGINE="django.db.backends.sqlite3"):
        assert "PostgreSQL 14" in found()["agentruns.E003"].msg


def test_a_default_agent_that_is_not_registered() -> None:
    with override_settings(AGENTRUNS={"DEFAULT_AGENT": "nobody"}):
        assert "agentruns.E004" in found()


def test_no_agent_at_all(monkeypatch: Any) -> None:
    monkeypatch.setattr("agentruns.checks.agent_names", list)
    with override_settings(AGENTRUNS={}):
        assert "agentruns.W001" in found()


def test_several_agents_and_no_default() -> None:
    assert len(_agents) > 1
    with override_settings(AGENTRUNS={}):
        assert "agentruns.W002" in found()


def test_views_that_are_open_to_anyone() -> None:
    with override_settings(REST_FRAMEWORK={}):
        assert "agentruns.W003" in found()


def test_an_api_that_nobody_can_sign_in_to() -> None:
    with override_settings(
        REST_FRAMEWORK={
            **project_settings.REST_FRAMEWORK,
            "DEFAULT_AUTHENTICATION_CLASSES": [],
        }
    ):
        assert "agentruns.W004" in found()


@pytest.mark.filterwarnings("ignore:Overriding setting DATABASES")
def test_a_hub_that_would_listen_through_a_pooler() -> None:
    with database(DISABLE_SERVER_SIDE_CURSORS=True):
        assert "agentruns.W005" in found()


@pytest.mark.filterwarnings("ignore:Overriding setting DATABASES")
def test_a_pooled_database_that_may_use_server_side_cursors() -> None:
    listen = {**project_settings.AGENTRUNS, "LISTEN_DATABASE": "direct"}
    databases = {**project_settings.DATABASES, "direct": project_settings.DATABASES["default"]}
    with override_settings(DATABASES=databases, AGENTRUNS=listen):
        assert "agentruns.W006" in found()


@pytest.mark.filterwarnings("ignore:Overriding setting DATABASES")
def test_connections_that_pile_up_under_asgi() -> None:
    with database(CONN_MAX_AGE=60):
        assert "agentruns.W007" in found()
    with database(CONN_MAX_AGE=60), override_settings(ASGI_APPLICATION=None):
        assert "agentruns.W007" not in found()


def test_every_check_is_in_the_operations_guide() -> None:
    source = (Path(agentruns.__file__).parent / "checks.py").read_text()
    ids = set(re.findall(r"agentruns\.[EW]\d{3}", source))

    assert ids <= set(re.findall(r"agentruns\.[EW]\d{3}", (DOCS / "operations.md").read_text()))
