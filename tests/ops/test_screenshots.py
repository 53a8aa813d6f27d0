"""The pages that docs/images shows; `docs/screenshots.py` keeps the pictures."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from agentruns.ids import first_id
from agentruns.models import AgentRun, RunEvent
from tests.factories import AgentRunFactory, ConversationFactory, MessageFactory, journal, now
from tests.ops.test_admin_in_a_browser import page, url

__all__ = ["page"]

pytestmark = [pytest.mark.chromium, pytest.mark.django_db(transaction=True)]

MIX = ("ended", "ended", "ended", "ended", "failed", "ended", "stopped", "ended", "ended")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(os.environ.get("AGENTRUNS_SCREENSHOTS") or tmp_path)


def a_day() -> None:
    """Runs over the last day, more of them at noon than at night."""
    count = 0
    for hour in range(24):
        for number in range(4 + min(hour, 23 - hour)):
            moment = now() - timedelta(hours=hour, minutes=5 * number % 50)
            count += 1
            AgentRunFactory(
                **{MIX[count % len(MIX)]: True},
                id=int_id(moment, count),
                created_at=moment,
                started_at=moment + timedelta(seconds=1),
                finished_at=moment + timedelta(seconds=30),
            )


def int_id(moment: Any, count: int) -> Any:
    from uuid import UUID

    return UUID(int=first_id(moment).int + count)


def a_failed_turn() -> AgentRun:
    conversation = ConversationFactory(title="Plans for the week")
    message = MessageFactory(conversation=conversation, content="What is left to do this week?")
    MessageFactory(
        conversation=conversation,
        reply=True,
        content="Three things are left: the report,",
        position=2,
        status="partial",
    )
    run: AgentRun = AgentRunFactory(
        failed=True,
        conversation=conversation,
        user_message=message,
        started_at=now() - timedelta(seconds=9),
        created_at=now() - timedelta(seconds=12),
        traceback='Traceback (most recent call last):\n  File "agents.py", line 31, in assistant\n'
        "ConnectionError: the calendar gave no answer\n",
    )
    called = {"call_id": "call_1", "name": "calendar", "arguments": {"week": 48}}
    failed = {"call_id": "call_1", "name": "calendar", "error": {"code": "tool_error"}}
    journal(
        run,
        ("run_started", {"attempt": 1}),
        ("content_delta", {"stream": "text", "delta": "Three things are left: the report,"}),
        ("tool_call_started", called),
        ("tool_call_finished", failed),
    )
    RunEvent.objects.create(
        run=run, seq=7, type="complete", payload={"status": "failed", "error": run.error}
    )
    return run


def test_pages_of_the_admin(page: Any, folder: Path, worker: Any) -> None:
    worker(worker_id="app-1:4117:9c2f1a", slots=20, busy=2)
    worker(worker_id="app-2:980:07be44", slots=20, draining=True)
    a_day()
    AgentRunFactory(ready_at=now() - timedelta(seconds=42))
    AgentRunFactory(running=True, worker_id="app-1:4117:9c2f1a")
    run = a_failed_turn()
    page.set_viewport_size({"width": 1280, "height": 900})

    for name, address in {
        "admin-dashboard": "/admin/agentruns/agentrun/dashboard/",
        "admin-runs": "/admin/agentruns/agentrun/",
        "admin-run": url(run),
    }.items():
        page.goto(address)
        page.screenshot(path=folder / f"{name}.png", full_page=name != "admin-runs")
        assert (folder / f"{name}.png").stat().st_size > 10_000
