from __future__ import annotations

from typing import Any

import pytest
from rest_framework.test import APIClient

from agentruns.models import AgentRun, Conversation, Message
from tests.factories import AgentRunFactory

pytestmark = pytest.mark.django_db


def own(user: Any, **state: Any) -> AgentRun:
    run: AgentRun = AgentRunFactory(conversation__user=user, turn=1, **state)
    Conversation.objects.filter(pk=run.conversation_id).update(last_turn=1)
    return run


def test_stopping_a_queued_run_cancels_it(client: APIClient) -> None:
    run = client.post("/api/runs", {"content": "Hi"}).json()

    answer = client.post(f"/api/runs/{run['run_id']}/stop")

    assert answer.status_code == 202
    assert answer.json() == {
        **run,
        "status": "cancelled",
        "last_seq": 3,
        "finished_at": answer.json()["finished_at"],
    }
    assert answer.json()["finished_at"]
    assert Message.objects.get(pk=run["user_message_id"]).status == "draft"


def test_stopping_a_running_run_asks_it_to_end(client: APIClient, user: Any) -> None:
    run = own(user, running=True)

    answers = [client.post(f"/api/runs/{run.pk}/stop") for _ in range(2)]

    assert [answer.status_code for answer in answers] == [202, 202]
    assert answers[0].json()["status"] == "running"
    assert answers[0].json()["cancel_requested"] is True


@pytest.mark.parametrize("state", ["ended", "failed", "stopped", "cancelled"])
def test_stopping_an_ended_run_changes_nothing(client: APIClient, user: Any, state: str) -> None:
    run = own(user, **{state: True})
    before = client.get(f"/api/runs/{run.pk}").json()

    answer = client.post(f"/api/runs/{run.pk}/stop")

    assert answer.status_code == 200
    assert answer.json() == before == client.get(f"/api/runs/{run.pk}").json()


@pytest.mark.parametrize("state", ["failed", "stopped"])
def test_a_retry_is_a_new_run_of_the_same_message(client: APIClient, user: Any, state: str) -> None:
    run = own(user, **{state: True}, metadata={"a": 1})

    answer = client.post(f"/api/runs/{run.pk}/retry")

    assert answer.status_code == 202
    retry = answer.json()
    assert retry["run_id"] != str(run.pk)
    assert retry["retry_of"] == str(run.pk)
    assert retry["user_message_id"] == str(run.user_message_id)
    assert (retry["attempt"], retry["status"], retry["last_seq"]) == (2, "queued", 2)
    assert retry["metadata"] == {"a": 1}
    assert client.get(answer["Location"]).json() == retry
    run.refresh_from_db()
    assert run.status in ("failed", "cancelled")


@pytest.mark.parametrize("state", ["running", "ended", "cancelled"])
def test_only_a_failed_or_stopped_run_is_retried(client: APIClient, user: Any, state: str) -> None:
    run = own(user, **{state: True})

    answer = client.post(f"/api/runs/{run.pk}/retry")

    assert answer.status_code == 409
    assert answer.json()["code"] == "not_retryable"
    assert AgentRun.objects.count() == 1


def test_a_queued_run_is_not_retried(client: APIClient) -> None:
    run_id = client.post("/api/runs", {"content": "Hi"}).json()["run_id"]

    assert client.post(f"/api/runs/{run_id}/retry").status_code == 409


def test_only_the_latest_turn_is_retried(client: APIClient, user: Any) -> None:
    run = own(user, failed=True)
    body = {"content": "Next", "conversation_id": str(run.conversation_id)}
    later = client.post("/api/runs", body).json()["run_id"]

    assert client.post(f"/api/runs/{run.pk}/retry").status_code == 409

    client.post(f"/api/runs/{later}/stop")  # never started: it does not count any more
    assert client.post(f"/api/runs/{run.pk}/retry").status_code == 202
    assert client.post(f"/api/runs/{run.pk}/retry").status_code == 409


def test_stopping_a_waiting_retry_leaves_its_message_in_the_transcript(
    client: APIClient, user: Any
) -> None:
    run = own(user, failed=True)
    retry = client.post(f"/api/runs/{run.pk}/retry").json()

    client.post(f"/api/runs/{retry['run_id']}/stop")

    message = Message.objects.get(pk=run.user_message_id)
    assert (message.status, message.position) == ("sent", 1)
    assert client.post(f"/api/runs/{run.pk}/retry").status_code == 202
