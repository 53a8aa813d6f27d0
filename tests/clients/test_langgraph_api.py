"""Threads and runs without a server: what is stored, what is refused, and in what words."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from rest_framework.test import APIClient

from agentruns.models import AgentRun, Conversation, RunStatus
from tests.factories import QuestionFactory, UserFactory

pytestmark = pytest.mark.django_db

INPUT = {"messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture
def client() -> APIClient:
    client = APIClient()
    client.force_authenticate(UserFactory())
    client.default_format = "json"
    return client


@pytest.fixture
def thread(client: APIClient) -> str:
    return str(client.post("/lg/threads", {}).json()["thread_id"])


def create(client: APIClient, thread: str, key: str | None = None, **body: Any) -> Any:
    headers = {"Idempotency-Key": key} if key else {}
    given = {"assistant_id": "assistant", "input": INPUT, **body}
    return client.post(f"/lg/threads/{thread}/runs", given, headers=headers)


def statuses() -> list[str]:
    return list(AgentRun.objects.order_by("turn").values_list("status", flat=True))


def test_a_run_says_where_it_is_without_the_mount(client: APIClient, thread: str) -> None:
    answer = create(client, thread, metadata={"k": "v"})

    run = answer.json()
    assert answer.status_code == 200
    assert (run["status"], run["metadata"]) == ("pending", {"k": "v"})
    assert answer["Content-Location"] == f"/threads/{thread}/runs/{run['run_id']}"
    assert client.get(f"/lg/threads/{thread}/runs/{run['run_id']}").json() == run
    assert client.get(f"/lg/threads/{thread}/runs").json() == [run]
    assert client.get(f"/lg/threads/{thread}").json()["status"] == "busy"


def test_a_request_that_is_sent_again_is_no_conflict_and_stops_nothing(
    client: APIClient, thread: str
) -> None:
    for strategy in ("reject", "interrupt"):
        first = create(client, thread, strategy, multitask_strategy=strategy)
        again = create(client, thread, strategy, multitask_strategy=strategy)
        assert again["Idempotent-Replayed"] == "true"
        assert again.json() == first.json()

    assert statuses() == [RunStatus.CANCELLED, RunStatus.QUEUED]
    assert create(client, thread, multitask_strategy="reject").status_code == 409
    assert len(statuses()) == 2


def test_a_refused_interrupt_stops_nothing(client: APIClient, thread: str) -> None:
    create(client, thread)

    for body in ({"assistant_id": "nobody"}, {"input": {"messages": []}}):
        assert create(client, thread, multitask_strategy="interrupt", **body).status_code >= 400

    assert statuses() == [RunStatus.QUEUED]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"input": None}, "input"),
        ({"input": {"messages": [{"role": "ai", "content": "x"}]}}, "input"),
        ({"input": {"messages": [{"role": "user", "content": [{"type": "image"}]}]}}, "input"),
        ({"input": {"messages": [{"role": "user", "content": ""}]}}, "input"),
        ({"stream_mode": "debug"}, "stream_mode"),
        ({"stream_mode": 1}, "stream_mode"),
        ({"multitask_strategy": "rollback"}, "multitask_strategy"),
        ({"assistant_id": None}, "assistant_id"),
        ({"metadata": {"langgraph": 1}}, "metadata"),
        ({"command": {"goto": "x"}}, "command"),
        ({"command": {"resume": 1, "update": {"x": 1}}}, "command.update"),
        ({"command": {"resume": 1}}, "input"),
        ({"webhook": "http://x"}, "webhook"),
        ({"after_seconds": 5}, "after_seconds"),
        ({"interrupt_before": ["x"]}, "interrupt_before"),
    ],
)
def test_what_is_wrong_is_named(client: APIClient, thread: str, body: Any, field: str) -> None:
    answer = create(client, thread, **body)

    assert answer.status_code == 422
    assert answer.json()["detail"].startswith(field)
    assert statuses() == []


def test_a_refused_run_opens_no_thread(client: APIClient) -> None:
    answer = create(client, "new", if_not_exists="create", assistant_id="nobody")

    assert answer.status_code == 404
    assert not Conversation.objects.exists()


def test_the_words_of_a_message_may_come_in_any_of_the_clients_shapes(
    client: APIClient, thread: str
) -> None:
    shapes: list[Any] = [
        INPUT,
        {"messages": "Hi"},
        {"messages": ["Hi"]},
        {"messages": [["user", "Hi"]]},
        {"messages": {"type": "human", "content": "Hi"}},
        {"messages": [{"type": "human", "content": [{"type": "text", "text": "Hi"}]}]},
    ]

    for shape in shapes:
        assert create(client, thread, input=shape).status_code == 200

    assert {run.user_message.content for run in AgentRun.objects.all()} == {"Hi"}


@pytest.mark.parametrize("thread_id", [1, "a/b", "x" * 256, "a\nb", ["x"]])
def test_a_thread_id_fits_a_path(client: APIClient, thread_id: Any) -> None:
    answer = client.post("/lg/threads", {"thread_id": thread_id})

    assert answer.status_code == 422
    assert answer.json()["detail"].startswith("thread_id")
    assert not Conversation.objects.exists()


def test_without_asgi_there_are_no_streams_and_no_waiting(client: APIClient, thread: str) -> None:
    run_id = create(client, thread).json()["run_id"]
    body = {"assistant_id": "assistant", "input": INPUT}

    for path in ("runs/stream", "runs/wait", f"threads/{thread}/runs/wait"):
        assert client.post(f"/lg/{path}", body).status_code == 406
    for path in ("stream", "join"):
        assert client.get(f"/lg/threads/{thread}/runs/{run_id}/{path}").status_code == 406
    assert len(statuses()) == 1


def test_a_thread_that_waits_for_an_answer_shows_the_question(
    client: APIClient, thread: str
) -> None:
    run_id = create(client, thread).json()["run_id"]
    run = AgentRun.objects.get(pk=run_id)
    held = {"claim_token": uuid4(), "claim_expires_at": run.created_at}
    AgentRun.objects.update(status=RunStatus.RUNNING, started_at=run.created_at, **held)
    AgentRun.objects.update(status=RunStatus.WAITING, **dict.fromkeys(held))
    run.refresh_from_db()
    QuestionFactory(run=run)

    shown = client.get(f"/lg/threads/{thread}").json()

    assert shown["status"] == "interrupted"
    assert shown["interrupts"] == {run_id: [{"id": f"{run_id}:1", "value": {"go": "on?"}}]}
    assert client.get(f"/lg/threads/{thread}/runs/{run_id}").json()["status"] == "running"
