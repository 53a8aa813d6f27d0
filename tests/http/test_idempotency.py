"""One key, one run: in turn, in parallel, and inside ATOMIC_REQUESTS."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection, connections, transaction
from rest_framework.test import APIClient

from agentruns import enqueue_run
from agentruns.models import AgentRun, Conversation, Message, RunEvent
from tests.factories import ConversationFactory, MessageFactory, UserFactory

from .conftest import client_of

PARALLEL = 50
WAIT_SECONDS = 30


@pytest.fixture(params=[False, True], ids=["autocommit", "atomic requests"])
def atomic_requests(request: Any, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", request.param)
    return bool(request.param)


def post(client: APIClient, body: Any, key: str | None = "key-1") -> Any:
    headers = {} if key is None else {"Idempotency-Key": key}
    return client.post("/api/runs", body, format="json", headers=headers)


def counts() -> tuple[int, ...]:
    return tuple(table.objects.count() for table in (Conversation, Message, AgentRun, RunEvent))


def in_threads(user: Any, body: Any) -> list[Any]:
    """The answers to `PARALLEL` identical requests, each on a connection of its own."""
    together = threading.Barrier(PARALLEL)

    def one(_: int) -> Any:
        try:
            client = client_of(user)
            together.wait(WAIT_SECONDS)
            return post(client, body)
        finally:
            connection.close()

    with ThreadPoolExecutor(PARALLEL) as pool:
        return list(pool.map(one, range(PARALLEL), timeout=WAIT_SECONDS))


def wait_until_blocked(number: int) -> None:
    """Until so many connections wait for a lock."""
    deadline = time.monotonic() + WAIT_SECONDS
    with connection.cursor() as cursor:
        while True:
            cursor.execute("SELECT pg_stat_clear_snapshot()")  # else frozen in a transaction
            cursor.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                " AND datname = current_database() AND pid <> pg_backend_pid()"
            )
            if cursor.fetchone()[0] >= number:
                return
            assert time.monotonic() < deadline, "nobody waits: the requests did not meet"
            threading.Event().wait(0.02)


@pytest.mark.django_db
def test_the_same_request_again_is_the_same_run(client: APIClient, user: Any) -> None:
    body = {"content": "Hi", "metadata": {"a": 1, "b": [2]}}
    first = post(client, body)
    before = counts()

    defaults = {"agent": "assistant", "limits": {"tokens": None}}
    again = post(client, {"metadata": {"b": [2], "a": 1}, **defaults, **body})

    assert (first.status_code, again.status_code) == (202, 202)
    assert again.json() == first.json()
    assert again["Idempotent-Replayed"] == "true"
    assert again["Location"] == first["Location"]
    assert "Idempotent-Replayed" not in first
    assert counts() == before


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("one", "other", "status"), [("1", "1.0", 202), ("1e2", "100", 202), ("1", "true", 422)]
)
def test_numbers_are_compared_as_json_has_them(
    client: APIClient, one: str, other: str, status: int
) -> None:
    body = '{"content": "Hi", "metadata": {"a": [%s]}}'
    answers = [
        client.post(
            "/api/runs",
            body % number,
            content_type="application/json",
            HTTP_IDEMPOTENCY_KEY="numbers",
        )
        for number in (one, other)
    ]

    assert [answer.status_code for answer in answers] == [202, status]


@pytest.mark.django_db
def test_a_replay_shows_the_run_as_it_is_now(client: APIClient) -> None:
    first = post(client, {"content": "Hi"}).json()
    client.post(f"/api/runs/{first['run_id']}/stop")

    again = post(client, {"content": "Hi"}).json()

    assert (again["run_id"], again["status"], again["last_seq"]) == (
        first["run_id"],
        "cancelled",
        3,
    )


@pytest.mark.django_db
@pytest.mark.parametrize(
    "change",
    [
        {"content": "Ho"},
        {"metadata": {"a": 1}},
        {"agent": "echo"},
        {"limits": {"tokens": 9}},
        {"conversation_id": "mine"},
    ],
)
def test_the_same_key_with_another_body_is_refused(
    client: APIClient, user: Any, change: dict[str, Any]
) -> None:
    if "conversation_id" in change:
        change = {"conversation_id": str(ConversationFactory(user=user).pk)}
    post(client, {"content": "Hi"})
    before = counts()

    answer = post(client, {"content": "Hi", **change})

    assert answer.status_code == 422
    assert answer.json()["code"] == "idempotency_mismatch"
    assert counts() == before


@pytest.mark.django_db
def test_another_user_s_key_is_another_key(client: APIClient) -> None:
    other = client_of(UserFactory())

    mine, theirs = post(client, {"content": "Hi"}), post(other, {"content": "Hi"})

    assert mine.json()["run_id"] != theirs.json()["run_id"]
    assert "Idempotent-Replayed" not in theirs


@pytest.mark.django_db
def test_without_a_key_every_request_is_a_run(client: APIClient) -> None:
    assert [post(client, {"content": "Hi"}, None).status_code for _ in range(2)] == [202, 202]
    assert AgentRun.objects.count() == 2


@pytest.mark.django_db
@pytest.mark.parametrize("key", ["", "a" * 256, "a\x00b", "é", "漢", "a\tb", "\x7f"])
def test_a_key_that_is_none_is_refused(client: APIClient, key: str) -> None:
    # As a server hands it over: headers are bytes, read as latin-1.
    raw = key.encode().decode("latin-1")
    answer = client.post("/api/runs", {"content": "Hi"}, format="json", HTTP_IDEMPOTENCY_KEY=raw)

    assert answer.status_code == 400
    assert answer.json()["code"] == "invalid_idempotency_key"
    assert counts() == (0, 0, 0, 0)


@pytest.mark.django_db
def test_the_longest_key_is_taken(client: APIClient) -> None:
    answers = [post(client, {"content": "Hi"}, "k" * 255) for _ in range(2)]

    assert answers[1]["Idempotent-Replayed"] == "true"


@pytest.mark.django_db
def test_a_request_that_failed_has_not_used_its_key(client: APIClient, user: Any) -> None:
    assert post(client, {"content": ""}).status_code == 400
    assert post(client, {"content": "Hi", "agent": "nobody"}).status_code == 400

    answer = post(client, {"content": "Hi"})

    assert answer.status_code == 202
    assert "Idempotent-Replayed" not in answer


@pytest.mark.django_db
def test_a_full_queue_still_replays(client: APIClient, user: Any, settings: Any) -> None:
    settings.AGENTRUNS = {**settings.AGENTRUNS, "MAX_QUEUED_PER_CONVERSATION": 1}
    body = {"content": "Hi", "conversation_id": str(ConversationFactory(user=user).pk)}
    first = post(client, body)

    assert post(client, body, "key-2").status_code == 429
    assert post(client, body).json() == first.json()
    assert AgentRun.objects.filter(idempotency_key="key-2").count() == 0


@pytest.mark.django_db
def test_a_consumed_draft_still_replays(client: APIClient, user: Any) -> None:
    draft = MessageFactory(conversation__user=user, draft=True)
    body = {
        "content": "Hi",
        "conversation_id": str(draft.conversation_id),
        "draft_id": str(draft.pk),
    }
    first = post(client, body)

    assert post(client, body).json() == first.json()
    assert post(client, body, "key-2").status_code == 404


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("place", ["a new conversation", "an old conversation"])
def test_parallel_requests_are_one_run(atomic_requests: bool, place: str) -> None:
    user = UserFactory()
    body = {"content": "Hi"}
    if place == "an old conversation":
        body["conversation_id"] = str(ConversationFactory(user=user).pk)

    answers = in_threads(user, body)

    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.json()["run_id"] for answer in answers}) == 1
    replayed = [answer.get("Idempotent-Replayed") for answer in answers]
    assert sorted(map(str, replayed)) == ["None"] + ["true"] * (PARALLEL - 1)
    assert counts() == (1, 1, 1, 2)


@pytest.mark.django_db(transaction=True)
def test_requests_that_meet_one_in_flight_wait_for_it_and_replay_it(
    atomic_requests: bool,
) -> None:
    user = UserFactory()

    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.extend(in_threads(user, {"content": "Hi"})))

    with transaction.atomic():
        run = enqueue_run(conversation=None, user=user, content="Hi", idempotency_key="key-1")
        thread.start()
        wait_until_blocked(PARALLEL)
    thread.join(WAIT_SECONDS)

    assert {answer.json()["run_id"] for answer in answers} == {str(run.pk)}
    assert {answer["Idempotent-Replayed"] for answer in answers} == {"true"}
    assert counts() == (1, 1, 1, 2)


@pytest.mark.django_db(transaction=True)
def test_a_request_that_meets_one_that_is_undone_is_a_run_of_its_own(
    atomic_requests: bool,
) -> None:
    user = UserFactory()
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.extend(in_threads(user, {"content": "Hi"})))

    with transaction.atomic():
        undone = enqueue_run(conversation=None, user=user, content="Hi", idempotency_key="key-1")
        thread.start()
        wait_until_blocked(PARALLEL)
        transaction.set_rollback(True)
    thread.join(WAIT_SECONDS)

    ids = {answer.json()["run_id"] for answer in answers}
    assert len(ids) == 1
    assert str(undone.pk) not in ids
    assert counts() == (1, 1, 1, 2)


@pytest.mark.django_db(transaction=True)
def test_a_refused_request_leaves_nothing_in_an_atomic_request(
    monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    settings.AGENTRUNS = {**settings.AGENTRUNS, "MAX_QUEUED_PER_CONVERSATION": 1}
    user = UserFactory()
    client = client_of(user)
    body = {"content": "Hi", "conversation_id": str(ConversationFactory(user=user).pk)}
    assert post(client, body, None).status_code == 202
    before = counts()

    assert post(client, body, "full").status_code == 429
    assert post(client, {"content": "Hi", "agent": "nobody"}, "agent").status_code == 400
    assert post(client, {"content": "Hi"}, "used").status_code == 202
    assert post(client, {"content": "Ho"}, "used").status_code == 422

    assert counts() == tuple(map(sum, zip(before, (1, 1, 1, 2), strict=True)))
