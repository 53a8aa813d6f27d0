"""Metrics: on the web, and nothing without prometheus_client."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections
from django.test import RequestFactory

from agentruns import metrics
from agentruns.exposition import expose
from agentruns.suspended import expire_questions
from agentruns.views.metrics import metrics as view
from tests.factories import AgentRunFactory, QuestionFactory, now


def samples() -> dict[str, str]:
    _, body = expose()
    lines = body.decode().splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))


@pytest.mark.django_db(transaction=True)
def test_a_scrape_of_the_web_says_how_the_queue_stands() -> None:
    AgentRunFactory(ready_at=now() - timedelta(hours=2))
    AgentRunFactory(running=True, agent="other")
    AgentRunFactory(expired=True)
    AgentRunFactory(waiting=True, agent="other")

    found = samples()

    assert found["agentruns_ready"] == "1.0"
    assert 7200 <= float(found["agentruns_oldest_wait_seconds"]) < 7300
    assert found["agentruns_running"] == "2.0"
    assert found["agentruns_lost"] == "1.0"
    assert found['agentruns_agent_running{agent="other"}'] == "1.0"
    assert found['agentruns_agent_waiting{agent="other"}'] == "1.0"
    assert found["agentruns_database_up"] == "1.0"


@pytest.mark.django_db
def test_a_question_that_expires_is_counted_as_the_end_of_its_run() -> None:
    QuestionFactory(late=True, run=AgentRunFactory(waiting=True, agent="expiring"))

    expire_questions()

    ended = 'agentruns_endings_total{agent="expiring",code="input_expired",status="failed"}'
    assert samples()[ended] == "1.0"


@pytest.mark.django_db(transaction=True)
def test_a_database_out_of_reach_is_a_sample_and_no_error(monkeypatch: Any) -> None:
    connections["default"].close()
    monkeypatch.setitem(connections["default"].settings_dict, "PORT", "1")

    found = samples()

    assert found["agentruns_database_up"] == "0.0"
    assert "agentruns_ready" not in found


@pytest.mark.django_db(transaction=True)
def test_the_view_answers_in_the_format_of_prometheus() -> None:
    response = view(RequestFactory().get("/metrics"))

    assert response.status_code == 200
    assert response["Content-Type"].startswith("text/plain; version=")
    assert b"# TYPE agentruns_viewers gauge" in response.content


def test_the_view_says_what_is_missing_without_the_extra(monkeypatch: Any) -> None:
    monkeypatch.setattr(metrics, "enabled", False)

    assert view(RequestFactory().get("/metrics")).status_code == 501


WITHOUT = """
import sys
for name in ("prometheus_client", "opentelemetry"):
    sys.modules[name] = None
from agentruns import metrics, tracing
assert not metrics.enabled and not tracing.enabled
assert tracing.current() is None
metrics.lost_signals.labels("ready").inc()
with metrics.flush(3), tracing.tool("search", "call_1"):
    metrics.viewers.dec()
"""


def test_without_the_extras_everything_is_a_stub() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=60, check=False
    )

    assert (ended.returncode, ended.stderr) == (0, "")
