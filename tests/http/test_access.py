"""Who may do what: credentials, ownership, and the project's own REST framework settings."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import pytest
from django.test import Client
from rest_framework.authtoken.models import Token
from rest_framework.permissions import AllowAny, BasePermission
from rest_framework.test import APIClient
from rest_framework.throttling import SimpleRateThrottle

from agentruns.models import AgentRun, Message, RunEvent
from agentruns.views.api import ApiView
from tests.factories import AgentRunFactory, MessageFactory, UserFactory

from .conftest import client_of

pytestmark = pytest.mark.django_db
RUN_ROUTES = [
    ("get", "runs/{run}"),
    ("get", "runs/{run}/events"),
    ("post", "runs/{run}/stop"),
    ("post", "runs/{run}/retry"),
    ("post", "runs/{run}/stream-token"),
]
CONVERSATION_ROUTES = [
    ("get", "conversations/{conversation}"),
    ("get", "conversations/{conversation}/messages"),
    ("post", "conversations/{conversation}/stop"),
]
ROUTES = [
    ("get", "runs"),
    ("post", "runs"),
    ("get", "conversations"),
    ("post", "conversations"),
    *RUN_ROUTES,
    *CONVERSATION_ROUTES,
]


def call(
    client: Any, method: str, route: str, run: Any = None, slash: str = "", **more: Any
) -> Any:
    ids = {"run": uuid4(), "conversation": uuid4()}
    if run is not None:
        ids = {"run": run.pk, "conversation": run.conversation_id}
    address = f"/api/{route.format(**ids)}{slash}"
    if method == "post":
        more = {"data": '{"content": "Hi"}', "content_type": "application/json", **more}
    return getattr(client, method)(address, **more)


@pytest.mark.parametrize(("method", "route"), ROUTES)
@pytest.mark.parametrize(
    "accept", ["*/*", "application/json", "text/event-stream", "image/png", "x"]
)
def test_without_credentials_there_is_a_401(method: str, route: str, accept: str) -> None:
    run = AgentRunFactory()

    answer = call(APIClient(), method, route, run, headers={"accept": accept})

    assert answer.status_code == 401
    assert answer["WWW-Authenticate"]
    assert answer.json() == {
        "detail": "Authentication credentials were not provided.",
        "code": "not_authenticated",
    }


@pytest.mark.parametrize(("method", "route"), ROUTES)
def test_a_project_that_allows_any_opens_nothing(
    method: str, route: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ApiView, "permission_classes", [AllowAny])

    assert call(APIClient(), method, route, AgentRunFactory()).status_code == 401


@pytest.mark.parametrize(("method", "route"), ROUTES)
def test_the_project_s_permissions_are_asked_too(
    client: APIClient, user: Any, method: str, route: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Nobody(BasePermission):
        def has_permission(self, request: Any, view: Any) -> bool:
            return False

    monkeypatch.setattr(ApiView, "permission_classes", [Nobody])

    answer = call(client, method, route, AgentRunFactory(conversation__user=user))

    assert answer.status_code == 403
    assert answer.json()["code"] == "permission_denied"


@pytest.mark.parametrize(("method", "route"), RUN_ROUTES + CONVERSATION_ROUTES)
@pytest.mark.parametrize("staff", [False, True])
def test_foreign_and_missing_are_the_same_404(method: str, route: str, staff: bool) -> None:
    client = client_of(UserFactory(is_staff=staff, is_superuser=staff))
    foreign = AgentRunFactory(failed=True)
    before = AgentRun.objects.values().get()

    answers = [call(client, method, route, run) for run in (foreign, None)]

    assert [answer.status_code for answer in answers] == [404, 404]
    assert answers[0].content == answers[1].content
    assert set(answers[0].json()) == {"detail", "code"}
    assert AgentRun.objects.values().get() == before


@pytest.mark.parametrize(("method", "route"), RUN_ROUTES + CONVERSATION_ROUTES)
@pytest.mark.parametrize("id_", ["x", "7", "%00", "%C3%A9", "{", "urn:uuid:0", "a" * 300, "0" * 32])
def test_what_is_no_id_is_not_found(client: APIClient, method: str, route: str, id_: str) -> None:
    route = route.replace("{run}", id_.replace("{", "{{")).replace(
        "{conversation}", id_.replace("{", "{{")
    )

    answer = call(client, method, route)

    assert answer.status_code == 404
    assert answer.json()["code"] in ("run_not_found", "conversation_not_found")


def test_an_id_may_be_written_in_capitals(client: APIClient, user: Any) -> None:
    run = AgentRunFactory(conversation__user=user)

    assert client.get(f"/api/runs/{str(run.pk).upper()}").status_code == 200


@pytest.mark.parametrize(("method", "route"), ROUTES)
def test_a_final_slash_makes_no_difference(
    client: APIClient, user: Any, method: str, route: str
) -> None:
    run = AgentRunFactory(failed=True, conversation__user=user, turn=1)

    answer = call(client, method, route, run, slash="/")

    assert answer.status_code in (200, 201, 202)
    assert call(client, method, route, run, slash="//").status_code == 404


@pytest.mark.parametrize(("method", "route"), ROUTES)
@pytest.mark.parametrize("accept", ["text/html", "application/xml", "x", ""])
def test_the_answer_is_json_whatever_is_accepted(
    client: APIClient, user: Any, method: str, route: str, accept: str
) -> None:
    run = AgentRunFactory(failed=True, conversation__user=user, turn=1)

    answer = call(client, method, route, run, headers={"accept": accept})

    assert answer.status_code in (200, 201, 202)
    assert answer["Content-Type"] == "application/json"


@pytest.mark.parametrize(("method", "route"), ROUTES)
def test_another_method_is_refused_in_json(
    client: APIClient, user: Any, method: str, route: str
) -> None:
    answer = call(client, "delete", route, AgentRunFactory(conversation__user=user))

    assert answer.status_code == 405
    assert answer.json()["code"] == "method_not_allowed"
    assert method.upper() in answer["Allow"]


def test_the_project_s_token_and_session_work() -> None:
    user = UserFactory()
    by_token = APIClient(headers={"authorization": f"Token {Token.objects.create(user=user).key}"})
    by_session = APIClient()
    by_session.force_login(user)

    for client in (by_token, by_session):
        assert client.post("/api/runs", {"content": "Hi"}, format="json").status_code == 202

    assert AgentRun.objects.filter(user_id=user.pk).count() == 2


def test_a_wrong_token_is_a_401() -> None:
    answer = APIClient().get("/api/runs", headers={"authorization": "Token nonsense"})

    assert answer.status_code == 401
    assert answer.json()["code"] == "authentication_failed"


def test_a_session_needs_the_csrf_token_to_write() -> None:
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(UserFactory())

    refused = browser.post("/api/runs", {"content": "Hi"}, content_type="application/json")

    assert refused.status_code == 403
    assert refused.json()["code"] == "permission_denied"
    assert AgentRun.objects.count() == 0
    assert browser.get("/api/runs").status_code == 200


def test_an_inactive_user_is_out() -> None:
    user = UserFactory()
    client = APIClient(headers={"authorization": f"Token {Token.objects.create(user=user).key}"})
    user.is_active = False
    user.save()

    assert client.get("/api/runs").status_code == 401


def test_the_project_s_throttles_work(client: APIClient, monkeypatch: pytest.MonkeyPatch) -> None:
    class OnceADay(SimpleRateThrottle):
        rate = "1/day"

        def get_cache_key(self, request: Any, view: Any) -> str:
            return str(request.user.pk)

    monkeypatch.setattr(ApiView, "throttle_classes", [OnceADay])
    first, second = (client.get("/api/runs") for _ in range(2))

    assert (first.status_code, second.status_code) == (200, 429)
    assert second.json()["code"] == "throttled"
    assert second["Retry-After"]


def test_a_draft_in_another_user_s_conversation_is_not_found(client: APIClient) -> None:
    draft = MessageFactory(draft=True)
    body = {
        "content": "Hi",
        "conversation_id": str(draft.conversation_id),
        "draft_id": str(draft.pk),
    }

    assert client.post("/api/runs", body).status_code == 404
    assert Message.objects.get().status == "draft"
    assert RunEvent.objects.count() == 0


def test_an_error_is_a_sentence_and_a_word(client: APIClient) -> None:
    answer = client.get(f"/api/runs/{uuid4()}")

    assert json.loads(answer.content) == {
        "detail": "There is no such run.",
        "code": "run_not_found",
    }


@pytest.mark.parametrize(("method", "route"), ROUTES)
def test_the_other_safe_methods_work(client: APIClient, user: Any, method: str, route: str) -> None:
    run = AgentRunFactory(failed=True, conversation__user=user)

    assert call(client, "options", route, run).status_code == 200
    if method == "get":
        assert call(client, "head", route, run).status_code == 200
