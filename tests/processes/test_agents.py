"""What agents' code may do to a worker: every failure is recorded, and siblings don't notice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from agentruns.models import AgentRun, Message
from tests.support import pointed_at

from .cluster import Cluster
from .history import counted, ended, enqueue, events, outcome, reply_of, started
from .worker import WorkerProcess

FAULTS = (
    "error",
    "exit",
    "interrupt",
    "generator_exit",
    "cancelled",
    "unspeakable",
    "ten_megabytes",
    "unstorable",
    "stop_iteration",
    "group",
    "recursion",
    "nested_task",
)
UNWRITABLE = (
    "nan",
    "infinity",
    "bytes",
    "datetime",
    "set",
    "object",
    "nested",
    "huge_int",
    "too_long",
)
FAILED = ("failed", "agent_error")
COMPLETED = ("completed", None)


@pytest.fixture(scope="module")
def runs(
    cluster: Cluster, django_db_blocker: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, AgentRun]]:
    """Every fault at once, in one worker, beside a sibling that goes on through all of them."""
    folder = tmp_path_factory.mktemp("agents")
    gate = folder / "gate"
    url = cluster.create()
    with django_db_blocker.unblock(), pointed_at(url):
        worker = WorkerProcess(url, folder / "log", ["--concurrency", "50"], {})
        try:
            sibling = started(enqueue(None, "count", gate=str(gate)))
            runs = {"sibling": sibling, "unawaited": enqueue(None, "unawaited_exit")}
            runs |= {kind: enqueue(None, "raising", kind=kind) for kind in FAULTS}
            runs |= {f"plain {k}": enqueue(None, "raising_plain", kind=k) for k in FAULTS[:8]}
            runs |= {kind: enqueue(None, "emitting", kind=kind) for kind in UNWRITABLE}
            runs["odd"] = enqueue(None, "odd")
            runs["odd type"] = enqueue(None, "odd", type=True)
            for name, run in runs.items():
                if name != "sibling":
                    ended(run)
            gate.touch()
            ended(sibling)
            yield runs
        finally:
            worker.destroy()
            print(worker.log)
    cluster.drop(url)


@pytest.fixture(autouse=True)
def reading(runs: dict[str, AgentRun]) -> None:
    """Each test reads what the one worker left."""


@pytest.mark.parametrize("kind", [*FAULTS, *(f"plain {kind}" for kind in FAULTS[:8])])
def test_whatever_code_raises_fails_its_run_alone(runs: dict[str, AgentRun], kind: str) -> None:
    run = runs[kind]

    assert outcome(run) == FAILED
    assert reply_of(run) == "before"
    assert run.traceback
    assert len(run.traceback) < 100_000
    assert "secret" not in str(run.error)


def test_a_sibling_of_failing_runs_does_not_notice(runs: dict[str, AgentRun]) -> None:
    assert outcome(runs["sibling"]) == COMPLETED
    assert counted(reply_of(runs["sibling"]) or "")


def test_a_task_that_exits_by_itself_takes_nobody_along(runs: dict[str, AgentRun]) -> None:
    assert outcome(runs["unawaited"]) == COMPLETED
    assert reply_of(runs["unawaited"]) == "still here"


@pytest.mark.parametrize("kind", UNWRITABLE)
def test_a_value_that_json_cannot_carry_is_refused_by_name(
    runs: dict[str, AgentRun], kind: str
) -> None:
    run = runs[kind]

    assert outcome(run) == COMPLETED
    assert (reply_of(run) or "").startswith("before ValueError: event 'value'")
    assert "value" not in [event.type for event in events(run)]


def test_text_that_no_column_takes_is_repaired(runs: dict[str, AgentRun]) -> None:
    run = runs["odd"]

    assert outcome(run) == COMPLETED
    assert reply_of(run) == "nul \ufffd, pair \U0001f600, half \ufffd"
    [odd] = [event for event in events(run) if event.type == "odd"]
    assert odd.payload == {"key": "\ufffd\ufffd"}
    [part] = Message.objects.get(pk=run.reply_message_id).parts
    assert part["name"] == "tool\ufffd"
    assert part["arguments"] == {"\ufffd": "\ufffd"}
    assert part["result"] == ["\ufffd", 10**400, 1.5]


def test_an_event_type_that_no_column_takes_is_refused(runs: dict[str, AgentRun]) -> None:
    assert outcome(runs["odd type"]) == FAILED
    assert "which cannot be stored" in runs["odd type"].traceback
