"""The admin in headless Chromium: the live journal, the acts, the dashboard."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from django.conf import settings
from django.db import connection, connections
from django.test import Client

from agentruns.models import AgentRun, RunEvent, RunStatus
from tests.conftest import find_program
from tests.factories import AgentRunFactory, UserFactory, journal

pytestmark = [pytest.mark.chromium, pytest.mark.django_db(transaction=True)]

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
PATIENCE = 30_000
"""Milliseconds."""


@pytest.fixture
def page(live_server: Any) -> Iterator[Any]:
    """A browser's page, signed in as a superuser."""
    from playwright.sync_api import sync_playwright

    client = Client()
    client.force_login(UserFactory(is_staff=True, is_superuser=True))
    session = client.cookies[settings.SESSION_COOKIE_NAME].value
    # Playwright runs an event loop in this thread, in which the tests mean to make their queries.
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"
    try:
        with sync_playwright() as playwright:
            path = find_program("chromium")
            browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
            context = browser.new_context(base_url=live_server.url)
            cookie = {"name": settings.SESSION_COOKIE_NAME, "value": session}
            context.add_cookies([{**cookie, "url": live_server.url}])
            context.set_default_timeout(PATIENCE)
            opened = context.new_page()
            errors: list[str] = []
            opened.on("pageerror", lambda error: errors.append(str(error)))
            yield opened
            browser.close()
            connections.close_all()  # inside of the loop this thread has connections of its own
    finally:
        with suppress(KeyError):
            del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]
    assert errors == []
    until_alone()


def until_alone() -> None:
    """Wait for the server's threads to let go of the database, which is dropped after the tests."""
    deadline = time.monotonic() + PATIENCE / 1000
    others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    with connection.cursor() as cursor:
        while True:
            cursor.execute(others)
            if cursor.fetchone() == (1,):
                return
            assert time.monotonic() < deadline
            time.sleep(0.05)


def url(run: AgentRun) -> str:
    return f"/admin/agentruns/agentrun/{run.pk}/change/"


def test_the_journal_goes_on_while_the_run_does_and_the_page_shows_its_end(page: Any) -> None:
    run = AgentRunFactory(running=True)
    journal(run, ("run_started", {"attempt": 1}))
    page.goto(url(run))
    assert page.locator("#agentruns-journal tbody tr").count() == 3

    RunEvent.objects.create(run=run, seq=4, type="content_delta", payload={"delta": "<b>Hi</b>"})
    page.locator("tr[data-seq='4']").wait_for()

    assert "<b>Hi</b>" in page.locator("tr[data-seq='4'] code").inner_text()
    RunEvent.objects.create(run=run, seq=5, type="complete", payload={"status": "completed"})
    AgentRun.objects.filter(pk=run.pk).update(status="completed", finished_at=run.started_at)
    page.get_by_text("completed", exact=False).first.wait_for()
    page.locator("#agentruns-journal[data-ended='yes']").wait_for()
    assert page.locator("tr[data-seq='5']").count() == 1


def test_stop_on_the_page_of_a_run(page: Any) -> None:
    run = AgentRunFactory(running=True)
    page.goto(url(run))

    page.get_by_role("button", name="Stop").click()
    page.get_by_text("1 run done").wait_for()

    run.refresh_from_db()
    assert run.cancel_requested


def test_end_as_lost_from_the_list(page: Any) -> None:
    lost, alive = AgentRunFactory(expired=True), AgentRunFactory(running=True)
    page.goto("/admin/agentruns/agentrun/")

    page.locator("#action-toggle").check()
    page.locator("select[name=action]").select_option("end_lost_runs")
    page.get_by_role("button", name="Go").click()
    page.get_by_text("1 run done").wait_for()

    lost.refresh_from_db()
    alive.refresh_from_db()
    assert (lost.status, alive.status) == (RunStatus.FAILED, RunStatus.RUNNING)


def test_the_dashboard_draws_its_chart(page: Any) -> None:
    AgentRunFactory.create_batch(3, failed=True)
    page.goto("/admin/agentruns/agentrun/")

    page.get_by_role("link", name="Dashboard").click()
    page.locator(".agentruns-chart rect.failed").wait_for(state="attached")

    box = page.locator(".agentruns-chart rect.failed").bounding_box()
    assert box is not None
    assert box["height"] > 50
