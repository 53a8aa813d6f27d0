"""What operators and probes read."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, connections
from django.test.utils import CaptureQueriesContext

from agentruns.status import read_status
from tests.factories import AgentRunFactory, ConversationFactory, now

pytestmark = pytest.mark.django_db


def health(*arguments: str) -> dict[str, Any]:
    out = StringIO()
    with suppress(SystemExit):
        call_command("agentruns", "health", "--json", *arguments, stdout=out)
    found: dict[str, Any] = json.loads(out.getvalue())
    return found


def test_status_counts_what_is_ready_behind_delayed_running_stopping_and_lost() -> None:
    ready = AgentRunFactory(ready_at=now() - timedelta(seconds=60))
    AgentRunFactory(conversation=ready.conversation)
    AgentRunFactory(ready_at=now() + timedelta(seconds=60))
    AgentRunFactory(running=True, cancel_requested=True)
    AgentRunFactory(expired=True)
    AgentRunFactory(waiting=True)
    AgentRunFactory(ended=True)

    status = read_status()

    counts = (status.queued, status.ready, status.behind, status.delayed)
    assert counts == (3, 1, 1, 1)
    assert (status.running, status.stopping, status.lost) == (2, 1, 1)
    assert status.oldest_wait == pytest.approx(60, abs=5)
    assert status.waiting == 1
    assert status.by_agent == {"assistant": {"queued": 3, "running": 2, "waiting": 1}}


def test_a_worker_without_a_row_of_its_own_is_seen_by_the_beats_of_its_runs(worker: Any) -> None:
    worker(worker_id="with-a-row")
    AgentRunFactory(running=True, worker_id="with-a-row")
    AgentRunFactory(running=True, worker_id="without")
    AgentRunFactory(expired=True, worker_id="crashed")

    live = {seen.worker_id: seen.live for seen in read_status().workers}

    assert live == {"with-a-row": True, "without": True, "crashed": False}


def test_status_costs_the_same_however_much_has_ended_or_waits() -> None:
    with CaptureQueriesContext(
        connection,
    ) as few:
        read_status()
    AgentRunFactory.create_batch(5, ended=True)
    AgentRunFactory.create_batch(5, conversation=ConversationFactory())

    with CaptureQueriesContext(connection) as many:
        read_status()

    assert len(few) <= 7
    assert len(many) == len(few)


def test_status_prints_lines_for_people_and_json(worker: Any) -> None:
    worker()
    AgentRunFactory(ready_at=now() - timedelta(hours=2, seconds=30))
    out, as_json = StringIO(), StringIO()

    call_command("agentruns", "status", stdout=out)
    call_command("agentruns", "status", "--json", stdout=as_json)

    lines = out.getvalue().splitlines()
    assert lines[0].startswith("queued   1: 1 ready, the oldest for 2 h; 0 behind")
    assert any(line.startswith("worker   host:1:test: alive, 0 of 4 slots") for line in lines)
    assert json.loads(as_json.getvalue())["ready"] == 1


def test_health_is_well_without_limits() -> None:
    assert health() == {"healthy": True, "problems": []}


def test_health_names_a_wait_beyond_the_limit() -> None:
    AgentRunFactory(ready_at=now() - timedelta(hours=2, seconds=30))

    assert health("--max-wait", "9000")["healthy"]
    assert health("--max-wait", "30")["problems"] == [
        "A run that may start has waited for 2 h; at most 30 s are allowed."
    ]


def test_a_turn_behind_another_of_its_conversation_is_no_wait() -> None:
    running = AgentRunFactory(running=True)
    AgentRunFactory(conversation=running.conversation, created_at=now() - timedelta(hours=1))

    assert health("--max-wait", "1")["healthy"]


def test_health_counts_idle_workers_and_not_those_that_are_gone(worker: Any) -> None:
    worker()
    worker(worker_id="gone", lifetime=timedelta(seconds=-1))

    assert health("--min-workers", "1")["healthy"]
    assert health("--min-workers", "2")["problems"] == ["1 workers are alive; at least 2 must be."]


def test_the_exit_code_is_1_where_a_limit_is_broken() -> None:
    with pytest.raises(SystemExit) as ended:
        call_command("agentruns", "health", "--min-workers", "1", stdout=StringIO())

    assert ended.value.code == 1


@pytest.mark.django_db(transaction=True)
def test_health_fails_while_the_database_is_out_of_reach(monkeypatch: Any) -> None:
    monkeypatch.setitem(connections["default"].settings_dict, "PORT", "1")
    connections["default"].close()

    with pytest.raises(CommandError, match="The database cannot be read: "):
        health("--min-workers", "1")
