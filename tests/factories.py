"""Rows for tests. A trait names a state, and its row is one that the schema allows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import factory
from django.conf import settings
from django.contrib.auth import get_user_model
from factory.django import DjangoModelFactory

from agentruns.models import (
    AgentRun,
    Conversation,
    Message,
    MessageRole,
    MessageStatus,
    Question,
    RunEvent,
    RunStatus,
)


def now() -> datetime:
    """This machine's time, as the columns take it."""
    moment = datetime.now(UTC)
    return moment if settings.USE_TZ else moment.replace(tzinfo=None)


class UserFactory(DjangoModelFactory):
    class Meta:
        model = get_user_model()

    username = factory.Sequence(lambda number: f"user-{number}")


class ConversationFactory(DjangoModelFactory):
    class Meta:
        model = Conversation

    user = factory.SubFactory(UserFactory)


class MessageFactory(DjangoModelFactory):
    class Meta:
        model = Message

    class Params:
        draft = factory.Trait(status=MessageStatus.DRAFT, position=None)
        queued = factory.Trait(status=MessageStatus.QUEUED, position=None)
        reply = factory.Trait(role=MessageRole.ASSISTANT, status=MessageStatus.COMPLETE)

    conversation = factory.SubFactory(ConversationFactory)
    role = MessageRole.USER
    content = "Hello"
    status = MessageStatus.SENT
    position = 1


class AgentRunFactory(DjangoModelFactory):
    """A run; queued, unless a trait says otherwise. It has no journal: add events to it."""

    class Meta:
        model = AgentRun

    class Params:
        running = factory.Trait(
            status=RunStatus.RUNNING,
            claim_token=factory.LazyFunction(uuid4),
            claim_expires_at=factory.LazyFunction(lambda: now() + timedelta(seconds=30)),
            last_heartbeat_at=factory.LazyFunction(now),
            started_at=factory.LazyFunction(now),
            worker_id="host:1:test",
            user_message__status=MessageStatus.SENT,
            user_message__position=1,
        )
        waiting = factory.Trait(
            status=RunStatus.WAITING,
            started_at=factory.LazyFunction(now),
            worker_id="host:1:test",
            user_message__status=MessageStatus.SENT,
            user_message__position=1,
        )
        expired = factory.Trait(
            running=True,
            claim_expires_at=factory.LazyFunction(lambda: now() - timedelta(hours=1)),
        )
        ended = factory.Trait(
            running=True,
            status=RunStatus.COMPLETED,
            finished_at=factory.LazyFunction(now),
        )
        failed = factory.Trait(
            ended=True,
            status=RunStatus.FAILED,
            error={"code": "agent_error", "message": "The agent failed."},
        )
        stopped = factory.Trait(ended=True, status=RunStatus.CANCELLED, cancel_requested=True)
        cancelled = factory.Trait(
            status=RunStatus.CANCELLED,
            finished_at=factory.LazyFunction(now),
            user_message__status=MessageStatus.DRAFT,
        )
        trimmed = factory.Trait(
            ended=True, input=None, last_seq=9, trimmed_at=factory.LazyFunction(now)
        )

    conversation = factory.SubFactory(ConversationFactory)
    user = factory.SelfAttribute("conversation.user")
    user_message = factory.SubFactory(
        MessageFactory, queued=True, conversation=factory.SelfAttribute("..conversation")
    )
    agent = "assistant"
    turn = factory.Sequence(lambda number: number + 1)
    input = factory.LazyAttribute(
        lambda run: {"content": "Hello", "agent": run.agent, "metadata": {}}
    )


class QuestionFactory(DjangoModelFactory):
    """The question that a waiting run asks."""

    class Meta:
        model = Question

    class Params:
        late = factory.Trait(expires_at=factory.LazyFunction(lambda: now() - timedelta(seconds=1)))
        run = factory.SubFactory(AgentRunFactory, waiting=True)

    user_message = factory.SelfAttribute("run.user_message")
    run_id = factory.SelfAttribute("run.pk")
    key = "1"
    question = {"go": "on?"}
    expires_at = factory.LazyFunction(lambda: now() + timedelta(hours=1))


def journal(run: AgentRun, *events: tuple[str, dict[str, object]]) -> None:
    """Give the run the events of enqueue, and these after them."""
    first = (
        ("user_message_created", {"message_id": str(run.user_message_id)}),
        ("run_queued", {"run_id": str(run.pk)}),
    )
    RunEvent.objects.bulk_create(
        RunEvent(run=run, seq=seq, type=type_, payload=payload)
        for seq, (type_, payload) in enumerate((*first, *events), start=1)
    )
