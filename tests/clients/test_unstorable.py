"""What PostgreSQL cannot store is a refusal on every wire, wherever a client puts it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.test import AsyncClient

from agentruns.models import AgentRun, Conversation, Question
from tests.factories import ConversationFactory, QuestionFactory, UserFactory

pytestmark = pytest.mark.django_db(transaction=True)

HALF = "\ud800"
SAID = {"id": "m", "role": "user", "content": "x", "parts": [{"type": "text", "text": "x"}]}
INPUT = {"threadId": "t", "runId": "r", "messages": [SAID]}


def post(user: Any, path: str, body: Any) -> int:
    client = AsyncClient()
    client.force_login(user)
    client.raise_request_exception = False
    answer = async_to_sync(client.post)(path, json.dumps(body), content_type="application/json")
    return answer.status_code


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/agui", {**INPUT, "threadId": HALF}, 400),
        ("/agui", {**INPUT, "runId": HALF}, 400),
        ("/agui/connect", {**INPUT, "threadId": HALF}, 400),
        ("/agui/stop/%00", {}, 404),
        ("/api/chat", {"id": HALF, "messages": [SAID]}, 400),
        ("/lg/threads", {"metadata": {"a": HALF}}, 422),
        ("/lg/threads/%00/runs/stream", {"assistant_id": "x", "input": {"messages": [SAID]}}, 404),
        ("/v1/conversations", {"metadata": {"a": HALF}}, 400),
    ],
)
def test_ids_and_metadata(path: str, body: Any, status: int) -> None:
    assert post(UserFactory(), path, body) == status
    assert not AgentRun.objects.exists()
    assert not Conversation.objects.exists()


@pytest.mark.parametrize("status", ["resolved", "cancelled"])
@pytest.mark.parametrize("key", [HALF, "\0"])
def test_the_key_of_an_interrupt(status: str, key: str) -> None:
    question = QuestionFactory(run__conversation=ConversationFactory(client_id="agui:t"))
    run = AgentRun.objects.get(pk=question.run_id)
    resume = [{"interruptId": f"{run.pk}:{key}", "status": status, "payload": 1}]

    assert post(run.user, "/agui", {**INPUT, "resume": resume}) == 404
    assert Question.objects.get().answered_at is None
