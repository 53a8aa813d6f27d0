"""Workers are seen, also those that have nothing to do; and nothing depends on it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import connection

from agentruns.models import SeenWorker
from agentruns.presence import Presence, State


def presence(**changed: object) -> Presence:
    given = {
        "worker_id": "host:1:a",
        "agents": ["echo"],
        "slots": 4,
        "reaps": True,
        "lifetime": timedelta(seconds=30),
        "state": lambda: State(busy=1, draining=False),
    }
    return Presence(**{**given, **changed})  # type: ignore[arg-type]


@pytest.mark.django_db
def test_a_worker_that_is_seen_again_keeps_its_row() -> None:
    seen = presence()
    seen.show()
    first = SeenWorker.objects.get()

    seen.show()

    again = SeenWorker.objects.get()
    assert again.started_at == first.started_at
    assert again.seen_at > first.seen_at
    assert again.gone_at - again.seen_at == timedelta(seconds=30)


@pytest.mark.django_db
def test_two_processes_of_one_name_have_a_row_each() -> None:
    presence().show()
    presence().show()

    assert SeenWorker.objects.filter(worker_id="host:1:a").count() == 2


@pytest.mark.django_db
def test_a_worker_that_leaves_has_no_row() -> None:
    seen = presence()
    seen.show()

    seen.leave()

    assert not SeenWorker.objects.exists()


@pytest.mark.django_db
def test_rows_of_workers_long_gone_are_removed_by_the_next_that_is_seen() -> None:
    presence(worker_id="crashed", lifetime=timedelta(hours=-2)).show()
    presence(worker_id="just gone", lifetime=timedelta(seconds=-1)).show()

    presence(worker_id="alive").show()

    assert set(SeenWorker.objects.values_list("worker_id", flat=True)) == {"just gone", "alive"}


@pytest.mark.django_db
def test_the_sign_of_life_is_a_hot_update() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_indexes WHERE tablename = 'agentruns_worker'")
        assert cursor.fetchone() == (1,)
