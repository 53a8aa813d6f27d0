from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.test import Client

from tests.factories import AgentRunFactory, MessageFactory, UserFactory, journal

pytestmark = pytest.mark.django_db
SECRET = "said in private"


def staff(*permissions: str) -> Client:
    user = UserFactory(is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def run() -> Any:
    failed = AgentRunFactory(failed=True, traceback="Traceback: boom", user_message__content=SECRET)
    journal(failed, ("content_delta", {"stream": "text", "delta": f"<b>{SECRET}</b>"}))
    return failed


def page_of(client: Client, run: Any) -> str:
    answer = client.get(f"/admin/agentruns/agentrun/{run.pk}/change/")
    assert answer.status_code == 200
    return answer.content.decode()


@pytest.mark.parametrize("model", ["agentrun", "conversation", "message"])
def test_lists_open(run: Any, model: str) -> None:
    MessageFactory()

    answer = staff(f"view_{model}").get(f"/admin/agentruns/{model}/")

    assert answer.status_code == 200


@pytest.mark.parametrize("model", ["agentrun", "conversation", "message"])
def test_a_search_finds_by_id(run: Any, model: str) -> None:
    client = staff(f"view_{model}")
    id_ = {
        "agentrun": run.pk,
        "conversation": run.conversation_id,
        "message": run.user_message_id,
    }[model]

    found = client.get(f"/admin/agentruns/{model}/?q={id_}").content.decode()

    assert (
        "1 "
        + {"agentrun": "agent run", "conversation": "conversation", "message": "message"}[model]
        in found
    )
    assert client.get(f"/admin/agentruns/{model}/?q=nonsense").status_code == 200


@pytest.mark.parametrize("model", ["agentrun", "conversation", "message"])
def test_nothing_is_added_changed_or_deleted(run: Any, model: str) -> None:
    client = staff(*(f"{verb}_{model}" for verb in ("view", "add", "change", "delete")))
    id_ = {
        "agentrun": run.pk,
        "conversation": run.conversation_id,
        "message": run.user_message_id,
    }[model]

    assert client.get(f"/admin/agentruns/{model}/add/").status_code == 403
    assert client.post(f"/admin/agentruns/{model}/{id_}/change/").status_code == 403
    assert client.post(f"/admin/agentruns/{model}/{id_}/delete/").status_code == 403


def test_words_and_tracebacks_need_permissions(run: Any) -> None:
    plain = page_of(staff("view_agentrun"), run)
    words = page_of(staff("view_agentrun", "read_words"), run)
    trace = page_of(staff("view_agentrun", "read_traceback"), run)

    assert SECRET not in plain
    assert "boom" not in plain
    assert SECRET in words
    assert "boom" not in words
    assert "boom" in trace
    assert SECRET not in trace


def test_what_an_agent_said_is_shown_as_text(run: Any) -> None:
    page = page_of(staff("view_agentrun", "read_words"), run)

    assert f"<b>{SECRET}" not in page


def test_those_without_the_right_see_nothing(run: Any) -> None:
    answer = staff().get(f"/admin/agentruns/agentrun/{run.pk}/change/")

    assert answer.status_code == 403
