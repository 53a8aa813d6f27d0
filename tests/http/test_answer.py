"""`POST runs/{id}/answer`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from rest_framework.test import APIClient

from agentruns import AlreadyAnswered, answer_run
from agentruns.conf import get_config
from agentruns.models import AgentRun, Conversation, Message, Question, RunEvent
from agentruns.reaper import Reaper
from agentruns.suspended import expire_questions
from tests.factories import AgentRunFactory, QuestionFactory, UserFactory, journal

from .conftest import client_of

pytestmark = pytest.mark.django_db

SAID = ("content_delta", {"stream": "text", "delta": "so far"})


def asking(user: Any, **question: Any) -> AgentRun:
    """A run of the user's that waits for an answer."""
    run: AgentRun = AgentRunFactory(conversation__user=user, waiting=True, turn=1)
    Conversation.objects.filter(pk=run.conversation_id).update(last_turn=1)
    required = ("input_required", {"key": "1", "question": {"go": "on?"}})
    journal(run, ("run_started", {"attempt": 1}), SAID, required)
    QuestionFactory(run=run, **question)
    return run


def code_of(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


def test_an_answer_queues_the_run_again(client: APIClient, user: Any) -> None:
    run = asking(user)

    answer = client.post(f"/api/runs/{run.pk}/answer", {"answer": {"yes": [1, None]}})

    assert answer.status_code == 202
    assert (answer.json()["status"], answer.json()["last_seq"]) == ("queued", 6)
    assert answer.json()["started_at"]
    event = RunEvent.objects.get(run=run, seq=6)
    assert (event.type, event.payload) == (
        "input_received",
        {"key": "1", "answer": {"yes": [1, None]}},
    )
    assert Question.objects.get().answer == {"yes": [1, None]}


@pytest.mark.parametrize("given", [None, 0, "", "é", False, []])
def test_any_json_is_an_answer(client: APIClient, user: Any, given: Any) -> None:
    run = asking(user)

    assert client.post(f"/api/runs/{run.pk}/answer", {"answer": given}).status_code == 202
    assert RunEvent.objects.get(run=run, seq=6).payload["answer"] == given


def test_a_question_is_answered_once(client: APIClient, user: Any) -> None:
    run = asking(user)
    route = f"/api/runs/{run.pk}/answer"
    client.post(route, {"answer": "first"})

    for body in ({"answer": "second"}, {"answer": "second", "key": "1"}):
        assert code_of(client.post(route, body)) == (409, "already_answered")
    assert Question.objects.get().answer == "first"


def test_an_answer_names_the_question_that_it_is_for(client: APIClient, user: Any) -> None:
    run = asking(user)
    QuestionFactory(run=run, key="0", answered_at=run.started_at, answer="earlier")
    route = f"/api/runs/{run.pk}/answer"

    earlier = client.post(route, {"answer": "late", "key": "0"})
    unknown = client.post(route, {"answer": "late", "key": "x"})

    assert code_of(earlier) == (409, "already_answered")
    assert code_of(unknown) == (409, "another_question")
    assert client.post(route, {"answer": "now", "key": "1"}).status_code == 202


def test_an_answer_after_its_time_is_refused_before_and_after_the_sweep(
    client: APIClient, user: Any
) -> None:
    run = asking(user, late=True)
    route = f"/api/runs/{run.pk}/answer"

    assert code_of(client.post(route, {"answer": 1})) == (410, "input_expired")
    assert expire_questions() == 1
    assert code_of(client.post(route, {"answer": 1})) == (410, "input_expired")

    shown = client.get(f"/api/runs/{run.pk}").json()
    assert (shown["status"], shown["error"]["code"]) == ("failed", "input_expired")
    assert Message.objects.get(pk=run.reply_message_id).content == "so far"
    assert client.post(f"/api/runs/{run.pk}/retry").status_code == 202


@pytest.mark.parametrize("state", ["running", "ended", "failed", "cancelled"])
def test_a_run_that_asks_nothing_takes_no_answer(client: APIClient, user: Any, state: str) -> None:
    run = AgentRunFactory(conversation__user=user, **{state: True})

    answer = client.post(f"/api/runs/{run.pk}/answer", {"answer": 1})

    assert code_of(answer) == (409, "not_waiting")


def test_another_users_run_does_not_exist(user: Any) -> None:
    run = asking(user)

    answer = client_of(UserFactory(is_staff=True)).post(f"/api/runs/{run.pk}/answer", {"answer": 1})

    assert code_of(answer) == (404, "run_not_found")


@pytest.mark.parametrize(
    "body",
    [{}, {"answer": "x" * 100_000}, {"answer": "nul \x00"}, {"answer": 1, "key": 7}, {"key": "1"}],
)
def test_what_is_no_answer_is_refused_by_its_field(client: APIClient, user: Any, body: Any) -> None:
    run = asking(user)

    answer = client.post(f"/api/runs/{run.pk}/answer", body)

    assert answer.status_code == 400
    assert set(answer.json()) <= {"answer", "key"}
    run.refresh_from_db()
    assert run.status == "waiting"


def test_a_stop_ends_a_waiting_run_with_what_it_said(client: APIClient, user: Any) -> None:
    run = asking(user)
    body = {"content": "Next", "conversation_id": str(run.conversation_id)}
    behind = client.post("/api/runs", body).json()

    stopped = client.post(f"/api/runs/{run.pk}/stop")

    assert (stopped.status_code, stopped.json()["status"]) == (202, "cancelled")
    assert Message.objects.get(pk=run.reply_message_id).status == "partial"
    assert AgentRun.objects.get(pk=behind["run_id"]).ready_at  # its turn has come
    answer = client.post(f"/api/runs/{run.pk}/answer", {"answer": 1})
    assert code_of(answer) == (409, "not_waiting")


def test_a_stop_keeps_what_an_answered_run_said(client: APIClient, user: Any) -> None:
    run = asking(user)
    client.post(f"/api/runs/{run.pk}/answer", {"answer": 1})

    stopped = client.post(f"/api/conversations/{run.conversation_id}/stop")

    assert stopped.json() == {"cancelled": [str(run.pk)], "stopping": [], "drafts": []}
    assert Message.objects.get(pk=run.reply_message_id).content == "so far"
    assert client.post(f"/api/runs/{run.pk}/retry").status_code == 202


def test_a_waiting_run_is_listed_and_active(client: APIClient, user: Any) -> None:
    run = asking(user)

    listed = client.get("/api/runs?status=waiting").json()["results"]
    active = client.get(f"/api/conversations/{run.conversation_id}").json()["active_runs"]

    assert [each["run_id"] for each in listed] == [str(run.pk)]
    assert [each["status"] for each in active] == ["waiting"]


def test_a_sweep_leaves_a_waiting_run_alone(user: Any) -> None:
    run = asking(user)
    hour = timedelta(hours=1)

    swept = Reaper(grace=timedelta(0), retention=hour).sweep(whole=True)

    assert (swept.reaped, swept.healed, swept.expired) == (0, 0, 0)
    run.refresh_from_db()
    assert run.status == "waiting"


def test_a_question_without_its_run_is_swept_away(user: Any) -> None:
    run = asking(user, late=True)
    AgentRun.objects.filter(pk=run.pk).update(status="failed", finished_at=run.started_at)

    assert expire_questions() == 0
    assert not Question.objects.exists()


def test_an_answer_may_be_as_long_in_every_script(client: APIClient, user: Any) -> None:
    route = f"/api/runs/{asking(user).pk}/answer"
    most = get_config().MAX_CONTENT_CHARS - len('""')

    assert client.post(route, {"answer": "é" * (most + 1)}).status_code == 400
    assert client.post(route, {"answer": "é" * most}).status_code == 202


def test_a_run_whose_question_was_deleted_takes_no_answer(client: APIClient, user: Any) -> None:
    run = asking(user)
    Question.objects.all().delete()

    answer = client.post(f"/api/runs/{run.pk}/answer", {"answer": 1})

    assert code_of(answer) == (409, "not_waiting")


def test_an_answer_that_comes_too_late_keeps_no_worker_from_the_run(user: Any) -> None:
    """A claim steps over a row that is locked, and would come back for it only with the poll."""
    run = asking(user)
    answer_run(run, "first")

    with CaptureQueriesContext(connection) as queries, pytest.raises(AlreadyAnswered):
        answer_run(run, "second")

    locked = [query["sql"] for query in queries if "FOR NO KEY UPDATE" in query["sql"]]
    assert locked
    assert not [text for text in locked if 'FROM "agentruns_agentrun"' in text]
