"""The admin: reads by indexes, shows words to those who may read them, acts through the verbs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from agentruns import enqueue_run
from agentruns.models import AgentRun, Question, RunEvent, RunStatus
from tests.factories import (
    AgentRunFactory,
    ConversationFactory,
    MessageFactory,
    QuestionFactory,
    UserFactory,
    journal,
    now,
)

pytestmark = pytest.mark.django_db

RUNS = "admin:agentruns_agentrun_changelist"
RUN = "admin:agentruns_agentrun_change"
DASHBOARD = "admin:agentruns_dashboard"
SECRET = "what only a few may read"


def staff(*permissions: str, **given: Any) -> Client:
    user = UserFactory(is_staff=True, **given)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def operator() -> Client:
    return staff(is_superuser=True)


@pytest.fixture
def viewer() -> Client:
    """Staff who may look at the rows, and no more."""
    return staff("view_agentrun", "view_conversation", "view_message")


def get(client: Client, name: str, *args: Any, **query: str) -> str:
    response = client.get(reverse(name, args=args), query)
    assert response.status_code == 200
    return response.content.decode()


def act(client: Client, action: str, *runs: AgentRun) -> str:
    data = {"action": action, "_selected_action": [str(run.pk) for run in runs]}
    response = client.post(reverse(RUNS), data, follow=True)
    assert response.status_code == 200
    return response.content.decode()


def failed_run() -> AgentRun:
    """A failed run whose every field of words holds the secret."""
    conversation = ConversationFactory(title=SECRET)
    message = MessageFactory(conversation=conversation, content=SECRET)
    run: AgentRun = AgentRunFactory(
        failed=True,
        conversation=conversation,
        user_message=message,
        input={"content": SECRET},
        metadata={"note": SECRET},
        traceback=f"Traceback: {SECRET}",
    )
    journal(run, ("run_started", {"attempt": 1}), ("content_delta", {"delta": SECRET}))
    return run


# Lists


def test_the_list_costs_the_same_however_many_runs_it_shows(operator: Client) -> None:
    AgentRunFactory(failed=True)
    with CaptureQueriesContext(connection) as few:
        get(operator, RUNS)
    AgentRunFactory.create_batch(10, failed=True)

    with CaptureQueriesContext(connection) as many:
        get(operator, RUNS)

    assert len(many) == len(few) <= 9


def test_the_list_leaves_heavy_columns_out(operator: Client) -> None:
    failed_run()

    with CaptureQueriesContext(connection) as queries:
        get(operator, RUNS)

    ordered = 'ORDER BY "agentruns_agentrun"."id" DESC'
    [listing] = [query["sql"] for query in queries if query["sql"].endswith(ordered)]
    assert '"agentruns_agentrun"."traceback"' not in listing
    assert '"agentruns_agentrun"."input"' not in listing


@pytest.mark.parametrize("by", ["pk", "conversation_id", "user_message_id", "username", "email"])
def test_search_finds_by_id_conversation_message_and_user(operator: Client, by: str) -> None:
    wanted = AgentRunFactory(conversation__user__email="ada@example.org")
    other = AgentRunFactory()
    user = {"username": wanted.user.get_username(), "email": "ada@example.org"}

    page = get(operator, RUNS, q=user.get(by) or str(getattr(wanted, by)))

    assert str(wanted.pk) in page
    assert str(other.pk) not in page


def test_search_for_nothing_known_finds_nothing(operator: Client) -> None:
    AgentRunFactory()

    assert "0 agent runs" in get(operator, RUNS, q="no such thing")


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"status__exact": "failed"}, {"failed"}),
        ({"code": "agent_error"}, {"failed"}),
        ({"agent": "other"}, {"other"}),
        ({"worker": "host:2:busy"}, {"busy"}),
        ({"attention": "lost"}, {"lost"}),
        ({"attention": "stopping"}, {"stopping"}),
        ({"attention": "waiting"}, {"waiting"}),
        ({"age": "10m"}, {"failed", "other", "busy", "lost", "stopping", "waiting"}),
        ({"age": "old"}, set()),
    ],
)
def test_filters_narrow_the_list(operator: Client, query: dict[str, str], found: set[str]) -> None:
    runs = {
        "failed": AgentRunFactory(failed=True),
        "other": AgentRunFactory(agent="other"),
        "busy": AgentRunFactory(running=True, worker_id="host:2:busy"),
        "lost": AgentRunFactory(expired=True),
        "stopping": AgentRunFactory(running=True, cancel_requested=True),
        "waiting": AgentRunFactory(ready_at=now() - timedelta(minutes=2)),
    }

    page = get(operator, RUNS, **query)

    assert {name for name, run in runs.items() if f"/{run.pk}/change/" in page} == found


@pytest.mark.parametrize("model", ["conversation", "message"])
def test_other_lists_cost_the_same_however_much_they_show(operator: Client, model: str) -> None:
    name = f"admin:agentruns_{model}_changelist"
    AgentRunFactory()
    with CaptureQueriesContext(connection) as few:
        get(operator, name)
    AgentRunFactory.create_batch(10)

    with CaptureQueriesContext(connection) as many:
        get(operator, name)

    assert len(many) == len(few) <= 7


# One run


def test_the_page_of_a_run_shows_why_it_stands_its_timeline_and_its_words(
    operator: Client,
) -> None:
    run = failed_run()

    page = get(operator, RUN, run.pk)

    assert f"Run {run.pk} failed" in page
    assert page.count(SECRET) >= 4
    assert f"Traceback: {SECRET}" in page
    for name in ("Queued", "Started", "First event", "Last beat", "Ended"):
        assert f"<th>{name}</th>" in page


def test_the_page_of_a_run_costs_the_same_however_long_its_journal(operator: Client) -> None:
    run = failed_run()
    with CaptureQueriesContext(connection) as short:
        get(operator, RUN, run.pk)
    events = [
        RunEvent(run=run, seq=seq, type="content_delta", payload={"delta": "x"})
        for seq in range(5, 400)
    ]
    RunEvent.objects.bulk_create(events)

    with CaptureQueriesContext(connection) as long:
        page = get(operator, RUN, run.pk)

    assert len(long) == len(short) <= 16
    assert page.count("data-seq=") == 200


def test_links_lead_from_a_run_to_its_conversation_user_and_retries(operator: Client) -> None:
    run = failed_run()
    retry = AgentRunFactory(conversation=run.conversation, retry_of=run, attempt=2)

    page = get(operator, RUN, run.pk)

    assert reverse("admin:agentruns_conversation_change", args=[run.conversation_id]) in page
    assert reverse("admin:auth_user_change", args=[run.user_id]) in page
    assert reverse(RUN, args=[retry.pk]) in page
    assert reverse(RUN, args=[run.pk]) in get(operator, RUN, retry.pk)


def test_staff_without_the_permissions_see_neither_words_nor_traceback(viewer: Client) -> None:
    run = failed_run()
    pages = [
        get(viewer, RUNS),
        get(viewer, RUN, run.pk),
        get(viewer, "admin:agentruns_journal", run.pk),
        get(viewer, "admin:agentruns_conversation_changelist"),
        get(viewer, "admin:agentruns_conversation_change", run.conversation_id),
        get(viewer, "admin:agentruns_message_changelist"),
        get(viewer, "admin:agentruns_message_change", run.user_message_id),
        get(viewer, DASHBOARD),
    ]

    assert all(SECRET not in page for page in pages)


@pytest.mark.parametrize(
    ("permission", "shown", "hidden"),
    [
        ("read_words", "<pre>" + SECRET, "Traceback: "),
        ("read_traceback", "Traceback: " + SECRET, "<pre>" + SECRET),
    ],
)
def test_each_permission_shows_its_own(permission: str, shown: str, hidden: str) -> None:
    run = failed_run()

    page = get(staff("view_agentrun", permission), RUN, run.pk)

    assert shown in page
    assert hidden not in page


@pytest.mark.parametrize("name", [RUNS, DASHBOARD])
def test_staff_without_a_permission_see_nothing(name: str) -> None:
    assert staff().get(reverse(name)).status_code == 403


def test_the_journal_goes_on_after_a_seq(operator: Client) -> None:
    run = AgentRunFactory(running=True)
    journal(run, ("run_started", {"attempt": 1}), ("content_delta", {"delta": "Hi"}))

    response = operator.get(reverse("admin:agentruns_journal", args=[run.pk]), {"after": "3"})

    assert response.json()["ended"] is False
    assert [event["seq"] for event in response.json()["events"]] == [4]


@pytest.mark.parametrize("name", ["add", "delete"])
def test_nothing_can_be_added_or_deleted(operator: Client, name: str) -> None:
    run = AgentRunFactory()
    args = [] if name == "add" else [run.pk]

    assert operator.get(reverse(f"admin:agentruns_agentrun_{name}", args=args)).status_code == 403


def test_nothing_can_be_changed(operator: Client) -> None:
    run = AgentRunFactory()

    response = operator.post(reverse(RUN, args=[run.pk]), {"status": "completed"})

    run.refresh_from_db()
    assert response.status_code == 403
    assert run.status == RunStatus.QUEUED


# Acts


def test_stop_goes_through_the_verb_and_is_logged(operator: Client) -> None:
    queued = enqueue_run(conversation=None, user=UserFactory(), content="Hi", agent="assistant")
    running = AgentRunFactory(running=True)

    page = act(operator, "stop_runs", queued, running)

    queued.refresh_from_db()
    running.refresh_from_db()
    assert "2 runs done" in page
    assert queued.status == RunStatus.CANCELLED
    assert queued.events.get(type="complete").payload["status"] == "cancelled"
    assert (running.status, running.cancel_requested) == (RunStatus.RUNNING, True)
    logged = {entry.object_id: entry.get_change_message() for entry in LogEntry.objects.all()}
    assert logged == {
        str(queued.pk): "Stopped before it started.",
        str(running.pk): "Asked to stop.",
    }


def test_stopping_a_run_that_has_ended_changes_and_logs_nothing(operator: Client) -> None:
    ended = AgentRunFactory(ended=True)

    page = act(operator, "stop_runs", ended)

    assert f"Run {ended.pk} has ended already (completed)." in page
    assert not LogEntry.objects.exists()


def test_retry_enqueues_a_linked_run_and_says_what_cannot_be_retried(operator: Client) -> None:
    failed, completed = AgentRunFactory(failed=True), AgentRunFactory(ended=True)

    page = act(operator, "retry_runs", failed, completed)

    retry = AgentRun.objects.get(retry_of=failed)
    assert retry.status == RunStatus.QUEUED
    assert f"Run {completed.pk} is completed; only a run that failed" in page
    assert [entry.object_id for entry in LogEntry.objects.all()] == [str(failed.pk)]


def test_end_as_lost_ends_only_what_is_past_lease_and_grace(operator: Client) -> None:
    lost = AgentRunFactory(expired=True)
    in_grace = AgentRunFactory(running=True, claim_expires_at=now() - timedelta(seconds=5))
    alive = AgentRunFactory(running=True)

    page = act(operator, "end_lost_runs", lost, in_grace, alive)

    statuses = [run.status for run in AgentRun.objects.order_by("pk")]
    assert statuses == [RunStatus.FAILED, RunStatus.RUNNING, RunStatus.RUNNING]
    lost.refresh_from_db()
    assert lost.error["code"] == "worker_lost"
    assert lost.events.filter(type="complete").exists()
    assert page.count("is not lost: only a running run whose lease lapsed 30 s ago is") == 2
    assert LogEntry.objects.get().get_change_message() == "Ended as worker_lost."


@pytest.mark.parametrize("action", ["stop_runs", "retry_runs", "end_lost_runs"])
def test_staff_without_the_permission_cannot_act(viewer: Client, action: str) -> None:
    run = AgentRunFactory(expired=True)

    page = act(viewer, action, run)

    run.refresh_from_db()
    assert (run.status, run.cancel_requested) == (RunStatus.RUNNING, False)
    assert f'value="{action}"' not in page


# Dashboard


def test_the_dashboard_shows_depth_agents_workers_failures_and_a_day(
    operator: Client, worker: Any
) -> None:
    worker()
    AgentRunFactory(ready_at=now() - timedelta(hours=2, seconds=30))
    AgentRunFactory(running=True, agent="other")
    failed_run()

    page = get(operator, DASHBOARD)

    assert "<dd>2 h</dd>" in page
    assert "host:1:test" in page
    assert ">agent_error</a>" in page
    for status in ("queued", "running", "failed"):
        assert f'<rect class="{status}"' in page


def test_the_dashboard_names_what_needs_somebody(operator: Client, worker: Any) -> None:
    worker(agents=["other"])
    AgentRunFactory()
    AgentRunFactory(expired=True)

    page = get(operator, DASHBOARD)

    assert "1 lost runs wait for a sweep." in page
    assert "No live worker knows agent &#x27;assistant&#x27;: 1 runs wait." in page


def test_the_dashboard_costs_the_same_however_much_there_is(operator: Client) -> None:
    AgentRunFactory()
    with CaptureQueriesContext(connection) as few:
        get(operator, DASHBOARD)
    for trait in ("failed", "running", "ended", "stopped"):
        AgentRunFactory.create_batch(4, **{trait: True})

    with CaptureQueriesContext(connection) as many:
        get(operator, DASHBOARD)

    assert len(many) == len(few) <= 13


def asking() -> AgentRun:
    run: AgentRun = AgentRunFactory(waiting=True)
    journal(run, ("run_started", {"attempt": 1}), ("input_required", {"key": "1"}))
    QuestionFactory(run=run)
    return run


def answer(client: Client, run: AgentRun, text: str, key: str = "1") -> Any:
    data = {"answer": text, "key": key}
    return client.post(reverse("admin:agentruns_answer", args=[run.pk]), data, follow=True)


def test_an_operator_answers_a_question_on_its_runs_page(operator: Client) -> None:
    run = asking()
    assert "&quot;go&quot;: &quot;on?&quot;" in get(operator, RUN, run.pk)

    refused = answer(operator, run, "yes").content.decode()
    taken = answer(operator, run, '{"yes": true}').content.decode()
    late = answer(operator, run, '"no"').content.decode()

    assert "is not JSON" in refused
    assert "the run goes on" in taken
    assert "answered already" in late
    run.refresh_from_db()
    assert run.status == "queued"
    assert Question.objects.get().answer == {"yes": True}
    assert LogEntry.objects.get().change_message == "Answered question '1'."


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        ("1" * 5000, "1", "is not JSON"),
        ("NaN", "1", "cannot be written as JSON"),
        ("[" * 100_000, "1", "is not JSON"),
        (r'"\u0000"', "1", "cannot be stored"),
        ("1", "\0", "contains U+0000, which no"),
    ],
)
def test_no_answer_of_an_operator_is_a_fault(
    operator: Client, text: str, key: str, words: str
) -> None:
    run = asking()

    assert words in answer(operator, run, text, key).content.decode()
    assert Question.objects.get().answered_at is None


def test_who_may_not_read_words_neither_sees_nor_answers_a_question() -> None:
    run = asking()
    client = staff("view_agentrun", "operate_agentrun")

    assert "agentruns-question" not in get(client, RUN, run.pk)
    assert answer(client, run, '"yes"').status_code == 403
