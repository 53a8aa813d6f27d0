"""`GET runs/{id}/events` as JSON, which is the only form under WSGI, and stream tokens."""

from __future__ import annotations

from typing import Any
from unittest import mock
from uuid import uuid4

import pytest
from django.core import signing
from rest_framework.test import APIClient

from agentruns import tokens
from agentruns.models import AgentRun
from tests.factories import AgentRunFactory, UserFactory, journal

pytestmark = pytest.mark.django_db
COMPLETE = ("complete", {"status": "completed", "error": None, "message_id": None})
HELLO = ("content_delta", {"stream": "text", "delta": "Hello"})


@pytest.fixture
def run(user: Any) -> AgentRun:
    ended: AgentRun = AgentRunFactory(ended=True, last_seq=4, conversation__user=user)
    journal(ended, HELLO, COMPLETE)
    return ended


def test_a_whole_run_in_one_answer(client: APIClient, run: AgentRun) -> None:
    answer = client.get(f"/api/runs/{run.pk}/events")

    assert answer.status_code == 200
    assert answer["Content-Type"] == "application/json"
    assert answer.json() == {
        "run_id": str(run.pk),
        "status": "completed",
        "events": [
            {"type": "user_message_created", "seq": 1, "message_id": str(run.user_message_id)},
            {"type": "run_queued", "seq": 2, "run_id": str(run.pk)},
            {"type": "content_delta", "seq": 3, "stream": "text", "delta": "Hello"},
            {"type": "complete", "seq": 4, **COMPLETE[1]},
        ],
        "cursor": 4,
        "last_seq": 4,
        "done": True,
    }


def test_pages_by_from_and_limit(client: APIClient, run: AgentRun) -> None:
    page = client.get(f"/api/runs/{run.pk}/events?from=1&limit=2").json()

    assert [event["seq"] for event in page["events"]] == [2, 3]
    assert (page["cursor"], page["last_seq"], page["done"]) == (3, 4, False)


@pytest.mark.parametrize("cursor", ["4", "5", "999999999999", "9" * 5000])
def test_past_the_end_there_is_nothing(client: APIClient, run: AgentRun, cursor: str) -> None:
    answer = client.get(f"/api/runs/{run.pk}/events?from={cursor}")

    assert answer.status_code == 200
    assert (answer.json()["events"], answer.json()["done"]) == ([], True)


def test_a_queued_run_is_not_done(client: APIClient) -> None:
    run_id = client.post("/api/runs", {"content": "Hi"}).json()["run_id"]

    page = client.get(f"/api/runs/{run_id}/events?from=2").json()

    assert page == {
        "run_id": run_id,
        "status": "queued",
        "events": [],
        "cursor": 2,
        "last_seq": 2,
        "done": False,
    }


def test_a_trimmed_run_still_ends(client: APIClient, user: Any) -> None:
    run = AgentRunFactory(trimmed=True, conversation__user=user)

    page = client.get(f"/api/runs/{run.pk}/events").json()

    [event] = page["events"]
    assert (event["type"], event["seq"], event["trimmed"]) == ("complete", 9, True)
    assert page["done"] is True


@pytest.mark.parametrize("field", ["from", "limit"])
@pytest.mark.parametrize("value", ["-1", "x", "", "1.0", "+1", " 1", "1e3", "%D9%A5", "0x1"])
def test_a_malformed_number_is_refused(
    client: APIClient, run: AgentRun, field: str, value: str
) -> None:
    answer = client.get(f"/api/runs/{run.pk}/events?{field}={value}")

    assert answer.status_code == 400
    assert list(answer.json()) == [field]


@pytest.mark.parametrize(
    "accept", ["application/json", "*/*", "text/event-stream, */*", "text/html", "", "nonsense"]
)
def test_json_is_the_form_without_a_stream(client: APIClient, run: AgentRun, accept: str) -> None:
    answer = client.get(f"/api/runs/{run.pk}/events", headers={"accept": accept})

    assert answer.status_code == 200
    assert answer["Content-Type"] == "application/json"


def test_a_stream_alone_is_not_to_be_had(client: APIClient, run: AgentRun) -> None:
    address, accept = f"/api/runs/{run.pk}/events", {"accept": "text/event-stream"}

    answer = client.get(address, headers=accept)

    assert answer.status_code == 406
    assert answer.json()["code"] == "no_stream"
    assert APIClient().get(address, headers=accept).status_code == 401


def test_a_token_opens_its_run_s_events_again_and_again(client: APIClient, run: AgentRun) -> None:
    answer = client.post(f"/api/runs/{run.pk}/stream-token")
    address = f"/api/runs/{run.pk}/events?token={answer.json()['token']}"

    assert answer.status_code == 201
    assert answer.json()["expires_in"] == tokens.LIFETIME_SECONDS
    assert answer["Cache-Control"] == "no-store"
    assert [APIClient().get(address).status_code for _ in range(2)] == [200, 200]


def test_a_token_opens_nothing_else(client: APIClient, run: AgentRun, user: Any) -> None:
    other = AgentRunFactory(conversation__user=user)
    token = tokens.issue(run, user)

    assert APIClient().get(f"/api/runs/{other.pk}/events?token={token}").status_code == 401
    assert APIClient().get(f"/api/runs/{run.pk}?token={token}").status_code == 401
    assert APIClient().post(f"/api/runs/{run.pk}/stop?token={token}").status_code == 401
    assert APIClient().get(f"/api/runs/x/events?token={token}").status_code == 401


@pytest.mark.parametrize("token", ["", "x", "a:b:c", "\x00", "é"])
def test_what_is_no_token_is_refused(run: AgentRun, token: str) -> None:
    answer = APIClient().get(f"/api/runs/{run.pk}/events", {"token": token})

    assert answer.status_code == 401
    assert answer.json()["code"] == "invalid_token"


def test_a_token_is_not_taken_from_another_signer(run: AgentRun, user: Any) -> None:
    token = signing.dumps([run.pk.hex, str(user.pk)], salt="other")

    with pytest.raises(tokens.InvalidToken):
        tokens.redeem(token, run.pk)


def test_a_token_expires(run: AgentRun, user: Any) -> None:
    # The signer's clock is Python's; an old signature is made, not waited for.
    with mock.patch("time.time", return_value=1_000_000.0):
        token = tokens.issue(run, user)

    answer = APIClient().get(f"/api/runs/{run.pk}/events?token={token}")

    assert answer.status_code == 401
    assert "expired" in answer.json()["detail"]


def test_a_token_gives_the_user_s_own_key_back(run: AgentRun, user: Any) -> None:
    assert tokens.redeem(tokens.issue(run, user), run.pk) == user.pk
    with pytest.raises(tokens.InvalidToken):
        tokens.redeem(tokens.issue(run, user), uuid4())


def test_a_token_does_not_outlive_its_user(run: AgentRun, user: Any) -> None:
    address = f"/api/runs/{run.pk}/events?token={tokens.issue(run, user)}"
    user.is_active = False
    user.save()

    assert APIClient().get(address).status_code == 401


def test_a_token_makes_nobody_an_owner(run: AgentRun) -> None:
    token = tokens.issue(run, UserFactory())

    assert APIClient().get(f"/api/runs/{run.pk}/events?token={token}").status_code == 404
