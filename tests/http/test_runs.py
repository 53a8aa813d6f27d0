"""`POST runs`, `GET runs`, `GET runs/{id}` as the contract has them."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from agentruns.models import AgentRun, Conversation, Message, RunEvent, RunStatus
from tests.factories import AgentRunFactory, ConversationFactory, MessageFactory, UserFactory

from .conftest import client_of

pytestmark = pytest.mark.django_db
RUN_FIELDS = {
    "run_id",
    "conversation_id",
    "user_message_id",
    "reply_message_id",
    "agent",
    "status",
    "cancel_requested",
    "error",
    "attempt",
    "retry_of",
    "last_seq",
    "metadata",
    "created_at",
    "started_at",
    "finished_at",
}


def post(client: APIClient, body: Any, **headers: str) -> Any:
    return client.post("/api/runs", body, format="json", headers=headers)


def post_text(client: APIClient, text: str | bytes, type_: str = "application/json") -> Any:
    return client.post("/api/runs", text, content_type=type_)


def aware(moment: datetime) -> datetime:
    return timezone.make_aware(moment) if timezone.is_naive(moment) else moment


def stored_rows() -> tuple[int, ...]:
    return tuple(table.objects.count() for table in (Conversation, Message, AgentRun, RunEvent))


def test_a_posted_turn_is_taken_and_queued(client: APIClient, user: Any) -> None:
    answer = post(client, {"content": "Hi", "metadata": {"a": [1]}})

    assert answer.status_code == 202
    run = answer.json()
    assert set(run) == RUN_FIELDS
    assert (run["status"], run["agent"], run["attempt"]) == ("queued", "assistant", 1)
    assert run["last_seq"] == 2
    assert run["metadata"] == {"a": [1]}
    assert run["error"] is run["retry_of"] is run["started_at"] is run["finished_at"] is None
    assert run["cancel_requested"] is False
    row = AgentRun.objects.get(pk=run["run_id"])
    assert row.user_id == user.pk
    assert str(row.conversation_id) == run["conversation_id"]
    assert str(row.reply_message_id) == run["reply_message_id"]
    assert Message.objects.get(pk=run["user_message_id"]).content == "Hi"
    assert Conversation.objects.get(pk=row.conversation_id).user_id == user.pk
    assert "Idempotent-Replayed" not in answer


def test_the_location_is_the_run(client: APIClient) -> None:
    answer = post(client, {"content": "Hi"})

    assert answer["Location"] == f"/api/runs/{answer.json()['run_id']}"
    assert client.get(answer["Location"]).json() == answer.json()


def test_a_turn_of_a_conversation_waits_in_it(client: APIClient, user: Any) -> None:
    conversation = ConversationFactory(user=user)

    answer = post(client, {"content": "Hi", "conversation_id": str(conversation.pk)})

    assert answer.json()["conversation_id"] == str(conversation.pk)
    assert Conversation.objects.count() == 1


def test_null_is_the_same_as_left_out(client: APIClient) -> None:
    names = ("conversation_id", "agent", "metadata", "draft_id")

    answer = post(client, {"content": "Hi", **dict.fromkeys(names)})

    assert answer.status_code == 202
    assert answer.json()["metadata"] == {}


def test_every_character_of_the_content_is_kept(client: APIClient) -> None:
    text = "  \n é漢😀\u2028\x85\t'%s' \\u0041 \n"

    answer = post(client, {"content": text})

    assert Message.objects.get(pk=answer.json()["user_message_id"]).content == text


@pytest.mark.parametrize(
    ("field", "body"),
    [
        ("content", {}),
        ("content", {"content": None}),
        ("content", {"content": ""}),
        ("content", {"content": " \n\t"}),
        ("content", {"content": 5}),
        ("content", {"content": True}),
        ("content", {"content": ["Hi"]}),
        ("content", {"content": {"text": "Hi"}}),
        ("content", {"content": "a\x00b"}),
        ("content", {"content": "a\ud800b"}),
        ("content", {"content": "a" * 100_001}),
        ("agent", {"content": "Hi", "agent": "nobody"}),
        ("agent", {"content": "Hi", "agent": ""}),
        ("agent", {"content": "Hi", "agent": 5}),
        ("agent", {"content": "Hi", "agent": ["assistant"]}),
        ("agent", {"content": "Hi", "agent": "\ud800"}),
        ("metadata", {"content": "Hi", "metadata": []}),
        ("metadata", {"content": "Hi", "metadata": "x"}),
        ("metadata", {"content": "Hi", "metadata": {"a": "\x00"}}),
        ("metadata", {"content": "Hi", "metadata": {"\ud800": 1}}),
        ("conversation_id", {"content": "Hi", "conversation_id": "x"}),
        ("conversation_id", {"content": "Hi", "conversation_id": 5}),
        ("conversation_id", {"content": "Hi", "conversation_id": ""}),
        ("conversation_id", {"content": "Hi", "conversation_id": [str(uuid4())]}),
        ("conversation_id", {"content": "Hi", "conversation_id": "\ud800"}),
        ("draft_id", {"content": "Hi", "draft_id": "x"}),
    ],
)
def test_a_wrong_field_is_named_and_nothing_is_stored(
    client: APIClient, field: str, body: dict[str, Any]
) -> None:
    answer = post_text(client, json.dumps(body))

    assert answer.status_code == 400
    assert list(answer.json()) == [field]
    assert all(isinstance(message, str) for message in answer.json()[field])
    assert stored_rows() == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "content"),
        (b"{", "not_json"),
        (b"content=Hi", "not_json"),
        (b"\xff\xfe", "not_json"),
        (b'{"content": "Hi", "metadata": {"n": NaN}}', "not_json"),
        (b'{"content": "Hi", "metadata": {"n": Infinity}}', "not_json"),
        (b'{"content": "Hi", "metadata": {"n": 1e999}}', "metadata"),
        (b'{"content": "Hi", "metadata": {"n": ' + b"9" * 5000 + b"}}", "not_json"),
        (b"[]", "not_an_object"),
        (b'"Hi"', "not_an_object"),
        (b"null", "not_an_object"),
        (b"7", "not_an_object"),
        (
            b'{"content": "Hi", "metadata": ' + b'{"a":' * 150 + b"1" + b"}" * 151,
            "nested_too_deeply",
        ),
        (b"[" * 100_000, "nested_too_deeply"),
        (b'{"a":' * 100_000, "nested_too_deeply"),
    ],
)
def test_a_body_that_is_no_json_object_is_refused(
    client: APIClient, body: bytes, code: str
) -> None:
    answer = post_text(client, body)

    assert answer.status_code == 400
    assert answer.json().get("code", *[key for key in answer.json() if key != "detail"][:1]) == code
    assert stored_rows() == (0, 0, 0, 0)


@pytest.mark.parametrize(
    "type_", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "nonsense"]
)
def test_a_body_of_another_type_is_refused(client: APIClient, type_: str) -> None:
    answer = post_text(client, b'{"content": "Hi"}', type_)

    assert answer.status_code == 400
    assert answer.json()["code"] == "not_json"
    assert stored_rows() == (0, 0, 0, 0)


def test_a_charset_in_the_content_type_does_no_harm(client: APIClient) -> None:
    for charset in ("utf-8", "base64", "latin-1", "nonsense"):
        answer = post_text(client, '{"content": "é"}', f"application/json; charset={charset}")

        assert answer.status_code == 202


def test_metadata_may_nest_as_deep_as_said(client: APIClient) -> None:
    metadata: dict[str, Any] = {}
    for _ in range(98):
        metadata = {"a": metadata}

    assert post(client, {"content": "Hi", "metadata": metadata}).json()["metadata"] == metadata


@pytest.mark.parametrize("whose", ["foreign", "missing"])
def test_a_conversation_that_is_not_mine_is_not_found(client: APIClient, whose: str) -> None:
    conversation_id = ConversationFactory().pk if whose == "foreign" else uuid4()

    answer = post(client, {"content": "Hi", "conversation_id": str(conversation_id)})

    assert answer.status_code == 404
    assert answer.json() == {
        "detail": "There is no such conversation.",
        "code": "conversation_not_found",
    }
    assert AgentRun.objects.count() == 0


def test_a_draft_becomes_the_turn_s_message(client: APIClient, user: Any) -> None:
    conversation = ConversationFactory(user=user)
    draft = MessageFactory(conversation=conversation, draft=True, content="Old")
    body = {"content": "New", "conversation_id": str(conversation.pk), "draft_id": str(draft.pk)}

    answer = post(client, body)

    assert answer.status_code == 202
    assert answer.json()["user_message_id"] == str(draft.pk)
    draft.refresh_from_db()
    assert (draft.content, draft.status) == ("New", "queued")
    assert Message.objects.count() == 1
    assert post(client, body).status_code == 404


@pytest.mark.parametrize("kind", ["missing", "sent", "elsewhere", "no conversation"])
def test_what_is_no_draft_of_that_conversation_is_not_found(
    client: APIClient, user: Any, kind: str
) -> None:
    conversation = ConversationFactory(user=user)
    draft_id = {
        "missing": lambda: uuid4(),
        "sent": lambda: MessageFactory(conversation=conversation).pk,
        "elsewhere": lambda: MessageFactory(conversation__user=user, draft=True).pk,
        "no conversation": lambda: MessageFactory(conversation=conversation, draft=True).pk,
    }[kind]()
    body = {"content": "Hi", "draft_id": str(draft_id)}
    if kind != "no conversation":
        body["conversation_id"] = str(conversation.pk)

    answer = post(client, body)

    assert answer.status_code == 404
    assert answer.json()["code"] == "draft_not_found"
    assert AgentRun.objects.count() == 0


def test_more_turns_than_may_wait_are_refused(client: APIClient, user: Any, settings: Any) -> None:
    settings.AGENTRUNS = {**settings.AGENTRUNS, "MAX_QUEUED_PER_CONVERSATION": 2}
    body = {"content": "Hi", "conversation_id": str(ConversationFactory(user=user).pk)}
    assert [post(client, body).status_code for _ in range(2)] == [202, 202]
    before = stored_rows()

    answer = post(client, body)

    assert answer.status_code == 429
    assert answer.json()["code"] == "queue_full"
    assert stored_rows() == before


def test_runs_are_listed_newest_first(client: APIClient, user: Any) -> None:
    ids = [post(client, {"content": "Hi"}).json()["run_id"] for _ in range(3)]
    AgentRunFactory()

    listed = client.get("/api/runs").json()

    assert [run["run_id"] for run in listed["results"]] == ids[::-1]
    assert set(listed["results"][0]) == RUN_FIELDS
    assert listed["results"][0]["last_seq"] == 2
    assert listed["next"] is listed["previous"] is None


def test_pages_follow_each_other_both_ways(client: APIClient) -> None:
    ids = [post(client, {"content": "Hi"}).json()["run_id"] for _ in range(5)]
    seen, address, pages = [], "/api/runs?limit=2", []
    while address:
        pages.append(client.get(address).json())
        seen += [run["run_id"] for run in pages[-1]["results"]]
        address = pages[-1]["next"]

    assert seen == ids[::-1]
    assert [len(page["results"]) for page in pages] == [2, 2, 1]
    assert client.get(pages[-1]["previous"]).json()["results"] == pages[1]["results"]


def test_a_list_costs_the_same_number_of_queries_at_any_length(
    client: APIClient, user: Any, django_assert_num_queries: Any
) -> None:
    for _ in range(5):
        post(client, {"content": "Hi"})

    with django_assert_num_queries(1):
        assert len(client.get("/api/runs").json()["results"]) == 5


def test_runs_are_filtered(client: APIClient, user: Any) -> None:
    running = AgentRunFactory(running=True, conversation__user=user)
    failed = AgentRunFactory(failed=True, conversation__user=user)

    def listed(query: str) -> list[str]:
        return [run["run_id"] for run in client.get(f"/api/runs?{query}").json()["results"]]

    assert listed(f"conversation={failed.conversation_id}") == [str(failed.pk)]
    assert listed("status=running") == [str(running.pk)]
    assert listed(f"status=running&conversation={failed.conversation_id}") == []


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("conversation=x", "conversation"),
        ("conversation=", "conversation"),
        ("conversation=%00", "conversation"),
        ("conversation=5", "conversation"),
        ("status=done", "status"),
        ("status=", "status"),
        ("limit=0", "limit"),
        ("limit=-1", "limit"),
        ("limit=x", "limit"),
        ("limit=1.5", "limit"),
        ("limit=", "limit"),
        ("limit=%D9%A5", "limit"),
        ("cursor=x", "cursor"),
        ("cursor=cD1hYmM%3D", "cursor"),  # p=abc: a position that is no time
        ("cursor=%C3%A9", "cursor"),
        ("cursor=bz0tMQ%3D%3D", "cursor"),  # o=-1
    ],
)
def test_a_malformed_query_is_refused_by_its_field(
    client: APIClient, query: str, field: str
) -> None:
    answer = client.get(f"/api/runs?{query}")

    assert answer.status_code == 400
    assert list(answer.json()) == [field]


def test_filtering_by_a_conversation_that_is_not_mine_is_not_found(client: APIClient) -> None:
    for conversation_id in (ConversationFactory().pk, uuid4()):
        answer = client.get(f"/api/runs?conversation={conversation_id}")

        assert answer.status_code == 404
        assert answer.json()["code"] == "conversation_not_found"


def test_a_long_page_is_cut_to_the_most_that_is_given(client: APIClient, user: Any) -> None:
    conversation = ConversationFactory(user=user)
    AgentRunFactory.create_batch(101, conversation=conversation, user=user)

    assert len(client.get("/api/runs?limit=5000").json()["results"]) == 100


def test_a_run_shows_where_it_stands(client: APIClient, user: Any) -> None:
    run = AgentRunFactory(failed=True, conversation__user=user, last_seq=7, attempt=2)

    shown = client.get(f"/api/runs/{run.pk}").json()

    row = AgentRun.objects.get(pk=run.pk)
    assert shown["status"] == "failed"
    assert shown["error"] == {"code": "agent_error", "message": "The agent failed."}
    assert (shown["last_seq"], shown["attempt"]) == (7, 2)
    for name in ("created_at", "started_at", "finished_at"):
        assert datetime.fromisoformat(shown[name]) == aware(getattr(row, name))
        assert shown[name].endswith("Z")


def test_a_running_run_shows_its_newest_event(client: APIClient, user: Any) -> None:
    run = AgentRunFactory(running=True, conversation__user=user)
    RunEvent.objects.bulk_create(RunEvent(run=run, seq=seq, type="x") for seq in (1, 2, 3))

    assert client.get(f"/api/runs/{run.pk}").json()["last_seq"] == 3
    assert client.get(f"/api/runs/{run.pk}").json()["status"] == RunStatus.RUNNING


def test_what_staff_may_see_stays_inside(client: APIClient, user: Any) -> None:
    run = AgentRunFactory(
        failed=True, conversation__user=user, traceback="Traceback: secret", worker_id="host:1:x"
    )

    assert "secret" not in client.get(f"/api/runs/{run.pk}").content.decode()


def test_times_are_utc_with_microseconds(client: APIClient) -> None:
    created = post(client, {"content": "Hi"}).json()

    moment = datetime.fromisoformat(created["created_at"])
    assert moment == aware(AgentRun.objects.get(pk=created["run_id"]).created_at)
    assert UUID(created["run_id"]).version == 7


def test_two_users_share_nothing(client: APIClient) -> None:
    other = client_of(UserFactory())
    run_id = post(client, {"content": "Hi"}).json()["run_id"]

    assert other.get("/api/runs").json()["results"] == []
    assert other.get(f"/api/runs/{run_id}").status_code == 404


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        ({"token": 1}, "limits has 'token', which is no limit; use run_seconds, "),
        ({"tokens": 0}, "limits.tokens is 0; write a number above 0 and at most 1000000000000000"),
        ({"cost": "1"}, "limits.cost is '1'; write a number"),
        ({"cost": True}, "limits.cost is True; write a number"),
        ({"queue_seconds": 1e9}, "limits.queue_seconds is 1000000000.0; write a number above 0"),
        ([1], "limits must be an object with any of run_seconds, "),
    ],
)
def test_limits_that_are_none_are_refused_by_field(
    client: APIClient, limits: object, sentence: str
) -> None:
    answer = post(client, {"content": "Hi", "limits": limits})

    assert answer.status_code == 400
    assert list(answer.json()) == ["limits"]
    assert answer.json()["limits"][0].startswith(sentence)
    assert not AgentRun.objects.exists()


def test_limits_are_kept_with_the_request(client: APIClient) -> None:
    limited = post(client, {"content": "Hi", "limits": {"tokens": 9, "cost": None}}).json()
    free = post(client, {"content": "Hi", "limits": None}).json()

    assert AgentRun.objects.get(pk=limited["run_id"]).limits == {"tokens": 9}
    assert AgentRun.objects.get(pk=free["run_id"]).limits is None
