"""Conversations and their messages, as the contract has them."""

from __future__ import annotations

from typing import Any

import pytest
from rest_framework.test import APIClient

from agentruns.models import AgentRun, Conversation, Message, RunEvent
from agentruns.turns import promote
from tests.factories import AgentRunFactory, ConversationFactory, MessageFactory, journal

pytestmark = pytest.mark.django_db
FIELDS = {"conversation_id", "title", "metadata", "created_at"}
MESSAGE_FIELDS = {
    "message_id",
    "conversation_id",
    "role",
    "content",
    "parts",
    "status",
    "position",
    "created_at",
}


def post_turn(client: APIClient, conversation: Conversation, content: str = "Hi") -> str:
    body = {"content": content, "conversation_id": str(conversation.pk)}
    run_id: str = client.post("/api/runs", body).json()["run_id"]
    return run_id


@pytest.fixture
def conversation(user: Any) -> Conversation:
    opened: Conversation = ConversationFactory(user=user)
    return opened


def test_a_conversation_is_opened(client: APIClient, user: Any) -> None:
    answer = client.post("/api/conversations", {"title": " Holidays ", "metadata": {"a": 1}})

    assert answer.status_code == 201
    assert set(answer.json()) == FIELDS
    assert answer.json()["title"] == " Holidays "
    assert answer.json()["metadata"] == {"a": 1}
    assert answer.json()["created_at"].endswith("Z")
    opened = Conversation.objects.get(pk=answer.json()["conversation_id"])
    assert opened.user_id == user.pk


@pytest.mark.parametrize("body", [{}, {"metadata": None}, {"title": ""}, None])
def test_title_and_metadata_may_be_left_out(client: APIClient, body: Any) -> None:
    answer = client.post("/api/conversations", body)

    assert answer.status_code == 201
    assert (answer.json()["title"], answer.json()["metadata"]) == ("", {})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("title", None),
        ("title", 5),
        ("title", "a\x00"),
        ("title", "a" * 1001),
        ("metadata", []),
        ("metadata", "x"),
        ("metadata", {"a": "\x00"}),
    ],
)
def test_a_wrong_field_is_named(client: APIClient, field: str, value: Any) -> None:
    answer = client.post("/api/conversations", {field: value})

    assert answer.status_code == 400
    assert list(answer.json()) == [field]
    assert Conversation.objects.count() == 0


def test_conversations_are_listed_newest_first(client: APIClient, user: Any) -> None:
    opened = [str(ConversationFactory(user=user).pk) for _ in range(3)]
    ConversationFactory()

    first = client.get("/api/conversations?limit=2").json()
    second = client.get(first["next"]).json()

    shown = [one["conversation_id"] for one in first["results"] + second["results"]]
    assert shown == opened[::-1]
    assert set(first["results"][0]) == FIELDS


def test_a_conversation_shows_what_to_follow(
    client: APIClient, user: Any, conversation: Conversation
) -> None:
    running = AgentRunFactory(running=True, conversation=conversation, turn=1)
    AgentRunFactory(ended=True, conversation=conversation, turn=0)
    journal(running, ("run_started", {"attempt": 1}))
    Conversation.objects.update(last_turn=1)
    waiting = post_turn(client, conversation)
    draft = MessageFactory(conversation=conversation, draft=True, content="Later")

    shown = client.get(f"/api/conversations/{conversation.pk}").json()

    assert set(shown) == FIELDS | {"active_runs", "drafts"}
    active = [(run["run_id"], run["status"], run["last_seq"]) for run in shown["active_runs"]]
    assert active == [(str(running.pk), "running", 3), (waiting, "queued", 2)]
    assert [message["message_id"] for message in shown["drafts"]] == [str(draft.pk)]
    assert shown["drafts"][0]["content"] == "Later"


def test_a_conversation_s_view_costs_the_same_at_any_length(
    client: APIClient, conversation: Conversation, django_assert_num_queries: Any
) -> None:
    for _ in range(5):
        post_turn(client, conversation)

    with django_assert_num_queries(3):
        shown = client.get(f"/api/conversations/{conversation.pk}").json()

    assert [run["last_seq"] for run in shown["active_runs"]] == [2] * 5


def test_messages_are_the_transcript_then_what_waits_then_drafts(
    client: APIClient, conversation: Conversation
) -> None:
    def message(**fields: Any) -> str:
        return str(MessageFactory(conversation=conversation, **fields).pk)

    draft = message(draft=True)
    waiting = [post_turn(client, conversation, text) for text in "ab"]
    waiting = [str(AgentRun.objects.get(pk=run).user_message_id) for run in waiting]
    reply = message(reply=True, position=2, parts=[{"type": "tool_call", "call_id": "1"}])
    said = message(position=1)
    message(reply=True, status="superseded", position=None)
    MessageFactory()

    shown = client.get(f"/api/conversations/{conversation.pk}/messages").json()

    ids = [shown_message["message_id"] for shown_message in shown["results"]]
    assert ids == [said, reply, *waiting, draft]
    assert all(set(shown_message) == MESSAGE_FIELDS for shown_message in shown["results"])
    assert shown["results"][1]["parts"] == [{"type": "tool_call", "call_id": "1"}]
    assert [one["position"] for one in shown["results"]] == [1, 2, None, None, None]


def test_a_draft_that_waits_again_waits_in_its_new_turn(
    client: APIClient, conversation: Conversation
) -> None:
    draft = MessageFactory(conversation=conversation, draft=True)
    first = post_turn(client, conversation)
    body = {"content": "x", "conversation_id": str(conversation.pk), "draft_id": str(draft.pk)}
    client.post("/api/runs", body)

    shown = client.get(f"/api/conversations/{conversation.pk}/messages").json()["results"]

    first_message = AgentRun.objects.get(pk=first).user_message_id
    assert [one["message_id"] for one in shown] == [str(first_message), str(draft.pk)]


def test_a_message_whose_first_turn_was_stopped_waits_behind_those_that_came_before_it_again(
    client: APIClient, conversation: Conversation
) -> None:
    runs = [post_turn(client, conversation, content) for content in "abc"]
    stopped = client.post(f"/api/runs/{runs[1]}/stop").json()
    body = {"content": "b again", "conversation_id": str(conversation.pk)}
    client.post("/api/runs", body | {"draft_id": stopped["user_message_id"]})

    shown = client.get(f"/api/conversations/{conversation.pk}/messages").json()["results"]

    assert [one["content"] for one in shown] == ["a", "c", "b again"]


def test_messages_are_read_in_one_statement(
    client: APIClient, conversation: Conversation, django_assert_num_queries: Any
) -> None:
    post_turn(client, conversation)

    with django_assert_num_queries(2):
        client.get(f"/api/conversations/{conversation.pk}/messages")


def test_a_stop_cancels_what_waits_and_asks_what_runs(
    client: APIClient, user: Any, conversation: Conversation
) -> None:
    running = AgentRunFactory(running=True, conversation=conversation, turn=1)
    Conversation.objects.update(last_turn=1)
    waiting = [post_turn(client, conversation, text) for text in "ab"]

    answer = client.post(f"/api/conversations/{conversation.pk}/stop")

    assert answer.status_code == 202
    stopped = answer.json()
    assert sorted(stopped["cancelled"]) == sorted(waiting)
    assert stopped["stopping"] == [str(running.pk)]
    assert [draft["content"] for draft in stopped["drafts"]] == ["a", "b"]
    assert set(stopped["drafts"][0]) == {"message_id", "content"}
    running.refresh_from_db()
    assert running.cancel_requested
    for run_id in waiting:
        assert AgentRun.objects.get(pk=run_id).status == "cancelled"
        assert RunEvent.objects.filter(run_id=run_id).latest("seq").type == "complete"
    assert Message.objects.drafts().count() == 2


def test_a_stop_of_an_idle_conversation_stops_nothing(
    client: APIClient, conversation: Conversation
) -> None:
    answer = client.post(f"/api/conversations/{conversation.pk}/stop")

    assert answer.status_code == 202
    assert answer.json() == {"cancelled": [], "stopping": [], "drafts": []}
    assert promote([conversation.pk]) == []
