"""Old journals are trimmed whole; the row tells the end of the story."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

from django.db import connection, transaction

from agentruns import reaper, wake
from agentruns.models import AgentRun, Message, RunEvent
from agentruns.reaper import trim

from .told import Told
from .viewers import Client

DAY = timedelta(days=1)


def old(user: Any) -> Told:
    told = Told(user)
    told.say("long ", "ago")
    told.end()
    AgentRun.objects.filter(pk=told.id).update(finished_at=told.refreshed().finished_at - 2 * DAY)
    return told


def test_a_late_viewer_of_a_trimmed_run_gets_its_end_from_the_row(
    client: Client, user: Any
) -> None:
    told = old(user)
    while trim(DAY):
        pass

    row = told.refreshed()
    assert (row.input, row.last_seq, row.events.count()) == (None, 6, 0)
    assert Message.objects.get(pk=row.reply_message_id).content == "long ago"
    end = {
        "type": "complete",
        "seq": 6,
        "status": "completed",
        "error": None,
        "message_id": str(row.reply_message_id),
        "trimmed": True,
    }
    assert client.follow(told.events).events == [end]
    assert client.follow(f"{told.events}?from=5").events == [end]
    page = client.json(told.events)
    assert (page["events"], page["done"], page["cursor"]) == ([end], True, 6)
    with client.open(f"{told.events}?from=6") as response:
        assert response.status_code == 204


def test_a_viewer_in_the_middle_of_a_run_that_is_trimmed_gets_its_end(
    client: Client, user: Any
) -> None:
    told = Told(user)
    with client.stream(f"{told.events}?from=3") as stream:
        stream.comment()
        told.row.events.all().delete()
        AgentRun.objects.filter(pk=told.id).update(
            status="completed", finished_at=told.refreshed().created_at - 2 * DAY, last_seq=9
        )
        assert trim(DAY) >= 1
        with transaction.atomic():
            wake.notify(wake.RUN_EVENTS, [told.id])

        assert stream.rest().events[-1]["trimmed"] is True


def test_a_trim_takes_few_runs_at_a_time_and_leaves_recent_ones(
    user: Any, monkeypatch: Any
) -> None:
    while trim(DAY):
        pass
    monkeypatch.setattr(reaper, "TRIM_BATCH", 2)
    olds, recent = [old(user) for _ in range(5)], Told(user)
    recent.end()

    assert [trim(DAY) for _ in range(4)] == [2, 2, 1, 0]

    kept = RunEvent.objects.filter(run_id__in=[told.id for told in olds]).count()
    assert (kept, recent.row.events.count()) == (0, 4)


def test_a_trim_passes_over_what_somebody_has_locked_and_blocks_no_writer(user: Any) -> None:
    locked, free, running = old(user), old(user), Told(user)
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with connection.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("SELECT FROM agentruns_agentrun WHERE id = %s FOR UPDATE", [locked.id])
            held.set()
            release.wait(60)
            cursor.execute("ROLLBACK")
        connection.close()

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(30)
    try:
        while trim(DAY):
            pass
        assert free.row.events.count() == 0
        assert locked.row.events.count() == 6
    finally:
        release.set()
        holder.join(30)
    running.say("goes on")
    running.end()
    assert trim(DAY) == 1
