"""`enqueue_run` and its twin write in the caller's transaction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import connection, transaction

from agentruns import aenqueue_run, enqueue_run, retry_run, stop_conversation
from agentruns.models import AgentRun, Conversation, Message, RunEvent
from tests.factories import AgentRunFactory, ConversationFactory, UserFactory

pytestmark = pytest.mark.django_db(transaction=True)
NOTHING = (0, 0, 0, 0)
ONE_RUN = (1, 1, 1, 2)
CHANNELS = ("agentruns_ready", "agentruns_events", "agentruns_stop")


class Undone(Exception):
    pass


@contextmanager
def undone() -> Iterator[None]:
    """A transaction that its owner gives up at the end."""
    with suppress(Undone), transaction.atomic():
        yield
        raise Undone


class Ear:
    """A connection that hears every hint."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection
        for channel in CHANNELS:
            connection.execute(f"LISTEN {channel}")

    def heard(self) -> list[str]:
        """The channels of the hints so far, each as often as it was used."""
        self.connection.execute("SELECT pg_notify(%s, 'end')", [CHANNELS[0]])
        channels = []
        for hint in self.connection.notifies(timeout=10):
            if hint.payload == "end":
                return channels
            channels.append(hint.channel)
        raise AssertionError("the end was not heard")


@pytest.fixture
def ear() -> Iterator[Ear]:
    options = connection.get_connection_params()
    for name in ("cursor_factory", "context"):
        options.pop(name, None)
    with psycopg.connect(**options, autocommit=True) as listening:
        yield Ear(listening)


def counts() -> tuple[int, ...]:
    return tuple(table.objects.count() for table in (Conversation, Message, AgentRun, RunEvent))


def test_a_commit_keeps_all_and_wakes_once(ear: Ear) -> None:
    user = UserFactory()

    with transaction.atomic():
        enqueue_run(conversation=None, user=user, content="Hi")
        assert ear.heard() == []

    assert counts() == ONE_RUN
    assert ear.heard() == ["agentruns_ready"]


def test_a_rollback_keeps_nothing_and_wakes_nobody(ear: Ear) -> None:
    user = UserFactory()

    with undone():
        enqueue_run(conversation=None, user=user, content="Hi", idempotency_key="k")
        assert counts() == ONE_RUN

    assert counts() == NOTHING
    assert ear.heard() == []


def test_an_inner_rollback_undoes_the_inner_part_alone(ear: Ear) -> None:
    user = UserFactory()

    with transaction.atomic():
        kept = enqueue_run(conversation=None, user=user, content="kept")
        with undone():
            enqueue_run(conversation=None, user=user, content="undone")

    assert AgentRun.objects.get().pk == kept.pk
    assert ear.heard() == ["agentruns_ready"]


def test_a_refusal_leaves_the_caller_s_transaction_usable(settings: Any) -> None:
    settings.AGENTRUNS = {**settings.AGENTRUNS, "MAX_QUEUED_PER_CONVERSATION": 1}
    conversation = ConversationFactory()

    with transaction.atomic():
        enqueue_run(conversation=conversation, content="Hi", idempotency_key="k")
        for refused in ({"idempotency_key": "k"}, {"content": "x"}, {"draft": conversation.pk}):
            with pytest.raises(Exception, match=r"key|turns|draft"):
                enqueue_run(**{"conversation": conversation, "content": "y", **refused})
        Message.objects.filter(conversation_id=conversation.pk).update(content="still works")

    assert Message.objects.get().content == "still works"


def test_stop_and_retry_write_in_the_caller_s_transaction(ear: Ear) -> None:
    failed = AgentRunFactory(failed=True, turn=1)
    Conversation.objects.update(last_turn=1)

    with undone():
        retry_run(failed)
        stop_conversation(failed.conversation_id)

    assert AgentRun.objects.count() == 1
    assert ear.heard() == []


def test_the_twin_writes_in_the_caller_s_transaction(ear: Ear) -> None:
    user = UserFactory()

    def undo() -> None:
        transaction.rollback()
        transaction.set_autocommit(True)

    async def enqueue_and_undo() -> tuple[int, ...]:
        await sync_to_async(transaction.set_autocommit)(False)
        await aenqueue_run(conversation=None, user=user, content="Hi")
        seen = await sync_to_async(counts)()
        await sync_to_async(undo)()
        return seen

    assert async_to_sync(enqueue_and_undo)() == ONE_RUN
    assert counts() == NOTHING
    assert ear.heard() == []
