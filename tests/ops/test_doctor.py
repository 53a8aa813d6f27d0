"""The doctor against set-ups that are really broken."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.test import override_settings

from agentruns import doctor
from agentruns.findings import Finding
from tests.factories import AgentRunFactory, journal
from tests.ops.conftest import another_session
from tests.support import until

pytestmark = pytest.mark.django_db


def found(probe: Any) -> tuple[str, str]:
    """Level and sentence of the probe's first finding that is not well, or of its first."""
    findings: list[Finding] = list(probe())
    worst = next((finding for finding in findings if finding.level != "ok"), findings[0])
    assert worst.level == "ok" or worst.hint
    return worst.level, worst.sentence


def execute(*statements: str) -> None:
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


@pytest.mark.django_db(transaction=True)
def test_a_whole_set_up_is_well_but_for_its_workers() -> None:
    out = StringIO()

    call_command("agentruns", "doctor", "--json", stdout=out)

    findings = json.loads(out.getvalue())["findings"]
    assert {finding["probe"] for finding in findings} >= {"signals", "schema", "streams", "bloat"}
    assert [finding["sentence"] for finding in findings if finding["level"] != "ok"] == [
        "No worker is alive."
    ]


def test_a_dropped_index_is_named() -> None:
    execute("DROP INDEX agentruns_startable")

    assert found(doctor.schema) == (
        "error",
        "Missing, invalid or switched off: agentruns_startable.",
    )


def test_a_trigger_that_was_switched_off_is_named() -> None:
    execute("ALTER TABLE agentruns_agentrun DISABLE TRIGGER status_only_moves_forward")

    assert found(doctor.schema) == (
        "error",
        "Missing, invalid or switched off: trigger status_only_moves_forward.",
    )


def test_a_dropped_constraint_is_named() -> None:
    execute("ALTER TABLE agentruns_agentrun DROP CONSTRAINT a_running_run_is_claimed")

    assert "a_running_run_is_claimed" in found(doctor.schema)[1]


@pytest.mark.parametrize(
    "index",
    [
        "CREATE INDEX hot ON agentruns_agentrun (claim_expires_at)",
        "CREATE INDEX hot ON agentruns_agentrun (agent) WHERE last_heartbeat_at IS NOT NULL",
    ],
)
def test_an_index_on_a_column_that_beats_is_named(index: str) -> None:
    execute(index)

    assert found(doctor.schema) == (
        "warning",
        "An index names a column that every heartbeat writes: hot.",
    )


def test_a_read_only_database_is_an_error() -> None:
    execute("SET LOCAL default_transaction_read_only = on")

    level, sentence = found(doctor.database)

    assert level == "error"
    assert "is read-only" in sentence


def test_a_migration_that_was_not_applied_is_named() -> None:
    execute("DELETE FROM django_migrations WHERE app = 'agentruns' AND name >= '0003'")

    level, sentence = found(doctor.migrations)

    assert level == "error"
    assert "agentruns.0003_operations" in sentence


@pytest.mark.django_db(transaction=True)
def test_signals_are_heard_on_a_direct_connection() -> None:
    assert found(doctor.signals)[0] == "ok"


@override_settings(AGENTRUNS={"LISTEN_DATABASE": None})
def test_signals_that_are_switched_off_are_worth_a_warning() -> None:
    assert found(doctor.signals)[0] == "warning"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "statement",
    [
        pytest.param(
            "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM "
            "agentruns_agentrun",
            id="it reads from one snapshot",
        ),
        pytest.param("SELECT pg_current_xact_id()", id="it has written"),
    ],
)
def test_a_session_that_keeps_vacuum_away_is_named(statement: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(doctor, "OLD_SNAPSHOT_SECONDS", 0.2)
    with another_session() as cursor:
        cursor.execute(statement)
        cursor.execute("SELECT pg_backend_pid()")
        named = f"Session {cursor.fetchone()[0]} "

        # Those of other tests on this server may be older, and end.
        until(lambda: found(doctor.vacuum)[1].startswith(named), "this session is the oldest")
        level, _ = found(doctor.vacuum)

    assert level == "warning"


def test_lost_runs_that_nobody_sweeps_are_an_error() -> None:
    AgentRunFactory(expired=True)

    assert found(doctor.queue) == ("error", "1 lost runs were not ended by a sweep.")


def test_queued_runs_of_an_agent_that_no_worker_knows_are_named(worker: Any) -> None:
    worker(agents=["other"])
    AgentRunFactory()

    assert found(doctor.queue)[1] == ("No live worker knows the agents of queued runs: assistant.")


@pytest.fixture
def ended_run(transactional_db: None) -> Any:
    run = AgentRunFactory(ended=True, last_seq=4)
    complete = {"status": "completed", "error": None, "message_id": None}
    journal(run, ("run_started", {"attempt": 1}), ("complete", complete))
    return run


def test_a_stream_comes_to_its_end(ended_run: Any) -> None:
    level, sentence = found(doctor.streams)

    assert (level, sentence) == (
        "ok",
        f"project.asgi.application streams /api/runs/{ended_run.pk}/events to its end, not packed.",
    )


def test_a_wsgi_project_has_no_streams(settings: Any) -> None:
    settings.ASGI_APPLICATION = None

    assert found(doctor.streams)[0] == "warning"


def test_an_asgi_application_without_the_routes_is_an_error(settings: Any, ended_run: Any) -> None:
    settings.ASGI_APPLICATION = "tests.ops.asgi.without_streams"

    level, sentence = found(doctor.streams)

    assert level == "error"
    assert sentence.endswith("by Django, which has no streams.")


def test_a_stream_that_comes_packed_is_an_error(settings: Any, ended_run: Any) -> None:
    settings.ASGI_APPLICATION = "tests.ops.asgi.packed"

    level, sentence = found(doctor.streams)

    assert level == "error"
    assert sentence == "The stream comes packed (gzip): packing holds events back."


def test_a_project_without_the_api_is_told(settings: Any) -> None:
    settings.ROOT_URLCONF = "tests.ops.asgi"

    assert found(doctor.streams)[1].startswith("No URL leads to agentruns.urls")


def test_a_probe_that_breaks_is_a_finding_and_the_next_goes_on(monkeypatch: Any) -> None:
    execute("ALTER TABLE agentruns_worker RENAME TO elsewhere")

    [broken] = doctor._examined("queue", doctor.queue)

    assert broken.level == "error"
    assert "agentruns_worker" in broken.sentence
