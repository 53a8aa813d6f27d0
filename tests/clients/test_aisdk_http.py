"""What the AI SDK's routes refuse, and whose a chat is."""

from __future__ import annotations

from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.test import AsyncClient, Client
from rest_framework.authtoken.models import Token

from agentruns.models import AgentRun
from tests.factories import UserFactory

pytestmark = pytest.mark.django_db(transaction=True)


def body(text: str = "Hi", **fields: Any) -> dict[str, Any]:
    message = {"id": "m", "role": "user", "parts": [{"type": "text", "text": text}]}
    return {"id": "chat", "messages": [message], **fields}


def headers_of(user: Any) -> dict[str, str]:
    return {"Authorization": f"Bearer {Token.objects.get_or_create(user=user)[0].key}"}


def post(headers: dict[str, str], told: dict[str, Any]) -> Any:
    # From here, what is not async of the view runs in this thread, on its connection.
    send = async_to_sync(AsyncClient().post)
    return send("/api/chat", told, "application/json", headers=headers)


def test_a_session_needs_its_csrf_token() -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(UserFactory())

    assert client.post("/api/chat/none/stop").status_code == 403


def test_a_stream_under_wsgi_is_refused_before_anything_starts() -> None:
    headers = headers_of(UserFactory())

    answer = Client().post("/api/chat", body(), "application/json", headers=headers)

    assert answer.status_code == 406
    assert not AgentRun.objects.exists()


def test_the_same_message_is_one_run_and_another_users_equal_chat_another() -> None:
    mine, theirs = [headers_of(UserFactory()) for _ in range(2)]

    for headers in (mine, mine, theirs):
        assert (post(headers, body())).status_code == 200

    assert AgentRun.objects.count() == 2


def test_an_idempotency_key_is_honoured() -> None:
    headers = {**headers_of(UserFactory()), "Idempotency-Key": "k"}

    first, again, other = [post(headers, body(text)) for text in ("Hi", "Hi", "Ho")]

    assert (first.status_code, again.status_code, other.status_code) == (200, 200, 422)
    assert again["Idempotent-Replayed"] == "true"


@pytest.mark.parametrize(
    ("told", "word"),
    [
        ({"id": ""}, "id"),
        ({"messages": []}, "messages"),
        ({"trigger": "tell"}, "trigger"),
        ({"agent": 1}, "agent"),
        ({"agent": "nobody"}, "agent"),
        ({"messages": [{"role": "user", "parts": [{"type": "file"}]}]}, "messages"),
    ],
)
def test_what_is_not_supported_is_said_in_plain_words(told: dict[str, Any], word: str) -> None:
    answer = post(headers_of(UserFactory()), body() | told)

    assert answer.status_code == 400
    assert answer["Content-Type"].startswith("text/plain")
    assert answer.content.decode().startswith(f"{word}: ")
    assert not AgentRun.objects.exists()
