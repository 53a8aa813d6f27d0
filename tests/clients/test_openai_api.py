"""Responses without a server: what is stored, what is refused, and in what words."""

from __future__ import annotations

from typing import Any

import pytest
from rest_framework.test import APIClient

from agentruns.models import AgentRun, Conversation, Message, RunStatus
from agentruns.reply import Reply
from tests.factories import AgentRunFactory, MessageFactory, UserFactory, journal

pytestmark = pytest.mark.django_db

EVENTS: list[tuple[str, dict[str, Any]]] = [
    ("run_started", {"attempt": 1}),
    ("tool_call_started", {"call_id": "c", "name": "add", "arguments": {"a": 1}}),
    ("tool_call_finished", {"call_id": "c", "name": "add", "result": 2}),
    ("content_delta", {"stream": "text", "delta": "Two."}),
]
COMPLETE = ("complete", {"status": "completed", "error": None, "message_id": None})


@pytest.fixture
def user() -> Any:
    return UserFactory()


@pytest.fixture
def client(user: Any) -> APIClient:
    client = APIClient()
    client.force_authenticate(user)
    client.default_format = "json"
    return client


def create(client: APIClient, **body: Any) -> Any:
    headers = body.pop("headers", {})
    given = {"input": "Hi", "model": "assistant", "background": True, **body}
    return client.post("/v1/responses", given, headers=headers)


def refused(answer: Any) -> tuple[int, str | None, str | None]:
    assert answer["x-should-retry"] == "false"
    error = answer.json()["error"]
    return answer.status_code, error["param"], error["code"]


def told_run(user: Any, *events: tuple[str, dict[str, Any]], **fields: Any) -> AgentRun:
    run = AgentRunFactory(conversation__user=user, **fields)
    journal(run, *events)
    return run  # type: ignore[no-any-return]


def test_a_response_is_a_run(client: APIClient, user: Any) -> None:
    answer = create(
        client,
        input=[
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        ],
        instructions="Be kind.",
        metadata={"k": "v"},
    )

    response, run = answer.json(), AgentRun.objects.get()
    assert (response["id"], response["status"]) == (f"resp_{run.pk.hex}", "queued")
    assert (response["metadata"], response["output"]) == ({"k": "v"}, [])
    assert response["instructions"] == "Be kind.\n\nBe brief."
    assert (run.user_message.content, run.agent, run.user) == ("Hi", "assistant", user)
    assert client.get(f"/v1/responses/{response['id']}").json() == response


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"input": ""}, "input", "invalid_value"),
        ({"input": None}, "input", "invalid_value"),
        ({"input": 1}, "input", "invalid_value"),
        ({"input": [{"role": "developer", "content": "x"}]}, "input", "invalid_value"),
        ({"input": [{"role": "assistant", "content": "x"}]}, "input", "unsupported_input"),
        ({"input": [{"type": "function_call_output"}]}, "input", "unsupported_input"),
        ({"input": [{"role": "user", "content": [1]}]}, "input", "unsupported_input"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input",
            "unsupported_input",
        ),
        ({"model": "nobody"}, "model", "model_not_found"),
        ({"model": 1}, "model", "invalid_value"),
        ({"tools": [{"type": "function"}]}, "tools", "unsupported_parameter"),
        ({"metadata": {"k": 1}}, "metadata", "invalid_value"),
        ({"metadata": {"openai": "x"}}, "metadata", "invalid_value"),
        ({"background": "yes"}, "background", "invalid_value"),
        (
            {"conversation": "conv_1", "previous_response_id": "resp_1"},
            "previous_response_id",
            "invalid_value",
        ),
    ],
)
def test_what_is_wrong_is_named(client: APIClient, body: Any, param: str, code: str) -> None:
    assert refused(create(client, **body)) == (400, param, code)
    assert not AgentRun.objects.exists()
    assert not Conversation.objects.exists()


def test_nobody_elses_ids_are_found(client: APIClient) -> None:
    run = told_run(UserFactory(), ended=True)
    theirs, conversation = f"resp_{run.pk.hex}", f"conv_{run.conversation_id.hex}"

    for path in (f"responses/{theirs}", f"responses/{theirs}/input_items", "responses/x"):
        assert client.get(f"/v1/{path}").status_code == 404
    assert client.get(f"/v1/conversations/{conversation}/items").status_code == 404
    assert client.post(f"/v1/responses/{theirs}/cancel").status_code == 404
    assert client.delete(f"/v1/responses/{theirs}").status_code == 404
    assert create(client, conversation=conversation).status_code == 404
    assert create(client, previous_response_id=theirs).status_code == 404
    assert AgentRun.objects.count() == 1


def test_a_conversation_goes_on_from_its_latest_response_only(client: APIClient) -> None:
    first = create(client).json()["id"]
    second = create(client, previous_response_id=first, headers={"Idempotency-Key": "k"})

    again = create(client, previous_response_id=first, headers={"Idempotency-Key": "k"})
    branch = create(client, previous_response_id=first)

    assert second.json()["previous_response_id"] == first
    assert (again.json()["id"], again["Idempotent-Replayed"]) == (second.json()["id"], "true")
    assert refused(branch) == (400, "previous_response_id", "unsupported_branch")
    assert AgentRun.objects.count() == 2


def test_a_turn_that_never_started_is_no_branch(client: APIClient) -> None:
    first = create(client).json()["id"]
    second = create(client, previous_response_id=first).json()["id"]

    assert client.post(f"/v1/responses/{second}/cancel").json()["status"] == "cancelled"
    assert create(client, previous_response_id=first).status_code == 200


def test_a_full_queue_is_refused_and_not_to_be_tried_again(
    client: APIClient, settings: Any
) -> None:
    settings.AGENTRUNS = {**settings.AGENTRUNS, "MAX_QUEUED_PER_CONVERSATION": 1}
    conversation = create(client).json()["conversation"]

    assert refused(create(client, conversation=conversation)) == (429, None, "queue_full")


def test_delete_takes_the_run_and_leaves_what_was_said(client: APIClient, user: Any) -> None:
    active = create(client).json()["id"]
    run = told_run(user, *EVENTS, COMPLETE, ended=True)
    path = f"/v1/responses/resp_{run.pk.hex}"

    assert refused(client.delete(f"/v1/responses/{active}"))[2] == "response_is_active"
    assert client.delete(path).json()["deleted"]
    assert client.get(path).status_code == 404
    assert Message.objects.filter(pk=run.user_message_id).exists()


def test_a_trimmed_response_still_says_what_it_said(client: APIClient, user: Any) -> None:
    run = told_run(user, *EVENTS, COMPLETE, ended=True)
    before = client.get(f"/v1/responses/resp_{run.pk.hex}").json()
    reply = Reply(EVENTS)
    MessageFactory(
        id=run.reply_message_id,
        reply=True,
        conversation=run.conversation,
        content=reply.content,
        parts=reply.parts,
        position=2,
    )
    run.events.all().delete()
    AgentRun.objects.filter(pk=run.pk).update(trimmed_at=run.finished_at, last_seq=7)

    after = client.get(f"/v1/responses/resp_{run.pk.hex}").json()

    assert after == before
    assert [item["type"] for item in after["output"]] == [
        "function_call",
        "function_call_output",
        "message",
    ]


def test_items_are_listed_in_pages(client: APIClient, user: Any) -> None:
    run = told_run(user, ended=True)
    MessageFactory(
        reply=True,
        conversation=run.conversation,
        content="Two.",
        parts=Reply(EVENTS).parts,
        position=2,
    )
    path = f"/v1/conversations/conv_{run.conversation_id.hex}/items"

    first = client.get(path, {"order": "asc", "limit": 2}).json()
    rest = client.get(path, {"order": "asc", "after": first["last_id"]}).json()

    kinds = [item["type"] for item in (*first["data"], *rest["data"])]
    assert kinds == ["message", "function_call", "function_call_output", "message"]
    assert (first["has_more"], rest["has_more"]) == (True, False)
    assert client.get(path).json()["data"] == [*first["data"], *rest["data"]][::-1]
    assert refused(client.get(path, {"limit": 0})) == (400, "limit", "invalid_value")
    assert refused(client.get(path, {"after": "x"})) == (400, "after", "invalid_value")


@pytest.mark.parametrize("cursor", ["-1", "x", "1.5", "\u0661"])
def test_a_cursor_is_a_whole_number(client: APIClient, user: Any, cursor: str) -> None:
    run = told_run(user, ended=True)
    path = f"/v1/responses/resp_{run.pk.hex}"

    answer = client.get(path, {"stream": "true", "starting_after": cursor})

    assert refused(answer) == (400, "starting_after", "invalid_value")


def test_without_asgi_there_are_no_streams_and_no_waiting(client: APIClient, user: Any) -> None:
    assert create(client, stream=True).status_code == 406
    assert create(client, background=False).status_code == 406
    assert AgentRun.objects.count() == 0
    run = told_run(user, status=RunStatus.QUEUED)
    path = f"/v1/responses/resp_{run.pk.hex}"
    assert client.get(path, {"stream": "true"}).status_code == 406
