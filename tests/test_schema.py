"""What the schema guarantees, whoever writes: shown with plain SQL, past the app."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO
from uuid import UUID

import psycopg
import pytest
from django.core.management import call_command
from django.db import connection
from psycopg import errors

from agentruns import answer_run
from agentruns.ids import uuid7
from agentruns.models import AgentRun, Message

from .factories import AgentRunFactory, QuestionFactory, UserFactory, journal

pytestmark = pytest.mark.django_db(transaction=True)

CLAIMED = "claim_token = gen_random_uuid(), claim_expires_at = now(), started_at = now()"
ENDED = "finished_at = now()"
UNHELD = "claim_token = NULL, claim_expires_at = NULL"


@pytest.fixture
def sql(transactional_db: None) -> Iterator[psycopg.Connection]:
    """A plain connection, as from psql."""
    params = connection.get_connection_params()
    wanted = ("host", "port", "user", "password", "dbname")
    arguments = {key: params[key] for key in wanted if params.get(key)}
    with psycopg.connect(**arguments, autocommit=True) as plain:
        yield plain


def update(sql: psycopg.Connection, run: AgentRun, assignments: str) -> None:
    sql.execute(f"UPDATE agentruns_agentrun SET {assignments} WHERE id = %s", [run.pk])


def put(run: AgentRun, status: str) -> AgentRun:
    """Bring a queued run into a status, the way it goes."""
    steps = {
        "queued": [],
        "running": [f"status = 'running', {CLAIMED}"],
        "cancelled": [f"status = 'cancelled', {ENDED}"],
    }
    steps["waiting"] = [*steps["running"], f"status = 'waiting', {UNHELD}"]
    steps["completed"] = [*steps["running"], f"status = 'completed', {ENDED}"]
    steps["failed"] = [*steps["running"], f"status = 'failed', {ENDED}"]
    with connection.cursor() as cursor:
        for assignments in steps[status]:
            cursor.execute(f"UPDATE agentruns_agentrun SET {assignments} WHERE id = %s", [run.pk])
    return run


def test_a_conversation_has_at_most_one_running_run(sql: psycopg.Connection) -> None:
    first = AgentRunFactory(running=True)
    second = AgentRunFactory(conversation=first.conversation)

    with pytest.raises(errors.UniqueViolation, match="one_running_per_conversation"):
        update(sql, second, f"status = 'running', {CLAIMED}")


ALLOWED = {
    ("queued", "running"): CLAIMED,
    ("queued", "cancelled"): ENDED,
    ("queued", "failed"): ENDED,
    ("running", "waiting"): UNHELD,
    ("running", "completed"): ENDED,
    ("running", "failed"): ENDED,
    ("running", "cancelled"): ENDED,
    ("waiting", "queued"): "answered_seq = 5",
    ("waiting", "failed"): ENDED,
    ("waiting", "cancelled"): ENDED,
}
STATUSES = ("queued", "running", "waiting", "completed", "failed", "cancelled")
REFUSED = [
    (old, new) for old in STATUSES for new in STATUSES if old != new and (old, new) not in ALLOWED
]


@pytest.mark.parametrize(("old", "new"), ALLOWED, ids="-".join)
def test_status_moves_forward(sql: psycopg.Connection, old: str, new: str) -> None:
    run = put(AgentRunFactory(), old)

    update(sql, run, f"status = '{new}', {ALLOWED[old, new]}")

    run.refresh_from_db()
    assert run.status == new


@pytest.mark.parametrize(("old", "new"), REFUSED, ids="-".join)
def test_status_never_moves_back(sql: psycopg.Connection, old: str, new: str) -> None:
    run = put(AgentRunFactory(), old)

    with pytest.raises(errors.CheckViolation, match=f"cannot move from {old} to {new}") as refusal:
        update(sql, run, f"status = '{new}', {CLAIMED}, {ENDED}")

    assert refusal.value.diag.constraint_name == "status_only_moves_forward"


@pytest.mark.parametrize(
    "limits", ['{"tokens": "9"}', '{"cost": 0}', '{"cost": 1e400}', '{"tokens": null}']
)
def test_a_limit_is_a_number_that_can_be_calculated_with(
    sql: psycopg.Connection, limits: str
) -> None:
    run = AgentRunFactory()
    update(sql, run, """limits = '{"tokens": 9, "cost": 0.5, "queue_seconds": 31622400}'""")

    with pytest.raises(errors.CheckViolation, match="limits_are_positive_numbers"):
        update(sql, run, f"limits = '{limits}'")


def test_a_run_that_waits_has_its_conversations_turn(sql: psycopg.Connection) -> None:
    first = put(AgentRunFactory(), "waiting")
    second = AgentRunFactory(conversation=first.conversation)

    with pytest.raises(errors.UniqueViolation, match="one_running_per_conversation"):
        update(sql, second, f"status = 'running', {CLAIMED}")


@pytest.mark.parametrize(
    "assignment",
    [
        "claim_token = gen_random_uuid()",
        "claim_expires_at = now()",
        "started_at = NULL",
        "finished_at = now()",
    ],
)
def test_a_waiting_run_is_unclaimed(sql: psycopg.Connection, assignment: str) -> None:
    run = put(AgentRunFactory(), "waiting")

    with pytest.raises(errors.CheckViolation, match="a_waiting_run_is_unclaimed"):
        update(sql, run, assignment)


def test_only_an_answered_run_is_queued_after_its_start(sql: psycopg.Connection) -> None:
    run = put(AgentRunFactory(), "waiting")

    with pytest.raises(errors.CheckViolation, match="a_queued_run_is_unclaimed"):
        update(sql, run, "status = 'queued'")


def test_an_unknown_status_is_refused_by_name(sql: psycopg.Connection) -> None:
    run = AgentRunFactory()

    with pytest.raises(errors.CheckViolation):
        update(sql, run, "status = 'paused'")
    with pytest.raises(errors.CheckViolation, match="a_run_has_a_known_status"):
        insert_run(sql, run, "'paused'")


def insert_run(
    sql: psycopg.Connection, like: AgentRun, status: str, columns: str = "", values: str = ""
) -> None:
    sql.execute(
        f"""INSERT INTO agentruns_agentrun (id, conversation_id, user_id, user_message_id,
            reply_message_id, agent, created_at, status {columns})
        SELECT %s, conversation_id, user_id, user_message_id, gen_random_uuid(), agent, now(),
            {status} {values} FROM agentruns_agentrun WHERE id = %s""",
        [uuid7(), like.pk],
    )


@pytest.mark.parametrize("column", ["claim_token", "claim_expires_at", "started_at"])
def test_a_running_run_is_claimed(sql: psycopg.Connection, column: str) -> None:
    run = AgentRunFactory(running=True)

    with pytest.raises(errors.CheckViolation, match="a_running_run_is_claimed"):
        update(sql, run, f"{column} = NULL")


def test_a_running_run_has_no_end(sql: psycopg.Connection) -> None:
    run = AgentRunFactory(running=True)

    with pytest.raises(errors.CheckViolation, match="a_running_run_is_claimed"):
        update(sql, run, "finished_at = now()")


@pytest.mark.parametrize(
    "assignment",
    [
        "claim_token = gen_random_uuid()",
        "claim_expires_at = now()",
        "started_at = now()",
        "finished_at = now()",
    ],
)
def test_a_queued_run_is_unclaimed(sql: psycopg.Connection, assignment: str) -> None:
    run = AgentRunFactory()

    with pytest.raises(errors.CheckViolation, match="a_queued_run_is_unclaimed"):
        update(sql, run, assignment)


@pytest.mark.parametrize("status", ["completed", "failed", "cancelled"])
def test_an_ended_run_has_finished_at(sql: psycopg.Connection, status: str) -> None:
    run = AgentRunFactory(running=True)

    with pytest.raises(errors.CheckViolation, match="an_ended_run_has_finished_at"):
        update(sql, run, f"status = '{status}'")


def insert_event(sql: psycopg.Connection, run_id: UUID, seq: int, type_: str) -> None:
    sql.execute(
        "INSERT INTO agentruns_runevent (run_id, seq, type, payload) VALUES (%s, %s, %s, '{}')",
        [run_id, seq, type_],
    )


def test_a_seq_is_used_once_per_run(sql: psycopg.Connection) -> None:
    run = AgentRunFactory()
    journal(run)

    with pytest.raises(errors.UniqueViolation, match="agentruns_runevent_pkey"):
        insert_event(sql, run.pk, 2, "progress")


def test_a_run_has_at_most_one_complete(sql: psycopg.Connection) -> None:
    run = AgentRunFactory()
    journal(run, ("complete", {}))

    with pytest.raises(errors.UniqueViolation, match="one_complete_per_run"):
        insert_event(sql, run.pk, 4, "complete")


def test_a_row_of_the_journal_never_changes(sql: psycopg.Connection) -> None:
    run = AgentRunFactory()
    journal(run)

    with pytest.raises(errors.CheckViolation, match=r"event 2 of run .* cannot change") as refusal:
        sql.execute("UPDATE agentruns_runevent SET payload = '{}' WHERE seq = 2")

    assert refusal.value.diag.constraint_name == "journal_rows_never_change"


def test_an_idempotency_key_is_used_once_per_user(sql: psycopg.Connection) -> None:
    first = AgentRunFactory(idempotency_key="key")
    AgentRunFactory(idempotency_key="key", conversation__user=UserFactory())

    with pytest.raises(errors.UniqueViolation, match="one_run_per_idempotency_key"):
        insert_run(sql, first, "'queued'", ", idempotency_key", ", 'key'")


def test_runs_without_a_key_do_not_collide(sql: psycopg.Connection) -> None:
    run = AgentRunFactory()

    insert_run(sql, run, "'queued'")

    assert AgentRun.objects.count() == 2


def test_the_status_trigger_is_silent_on_a_heartbeat(sql: psycopg.Connection) -> None:
    run = AgentRunFactory(running=True)
    # In a trigger that fires, every status is an error: what gets through did not fire it.
    sql.execute(
        """CREATE OR REPLACE TRIGGER status_only_moves_forward BEFORE UPDATE OF status
        ON agentruns_agentrun FOR EACH ROW EXECUTE FUNCTION agentruns_check_status_move()"""
    )
    try:
        with pytest.raises(errors.CheckViolation):
            update(sql, run, "status = status")

        update(sql, run, "claim_expires_at = now(), last_heartbeat_at = now()")
    finally:
        call_command("migrate", "agentruns", "0001", verbosity=0)
        call_command("migrate", "agentruns", verbosity=0)


def test_a_run_that_is_deleted_takes_its_journal_and_leaves_its_retry() -> None:
    run = AgentRunFactory(failed=True)
    journal(run, ("complete", {}))
    retry = AgentRunFactory(conversation=run.conversation, retry_of=run, attempt=2)

    run.delete()

    retry.refresh_from_db()
    assert retry.retry_of_id is None


def test_migrations_reverse_to_nothing_and_apply_again(sql: psycopg.Connection) -> None:
    def leftovers() -> list[str]:
        found = sql.execute(
            """SELECT relname FROM pg_class WHERE relname LIKE 'agentruns%'
            UNION ALL SELECT proname FROM pg_proc WHERE proname LIKE 'agentruns%'"""
        )
        return [name for (name,) in found]

    try:
        call_command("migrate", "agentruns", "zero", verbosity=0)

        assert leftovers() == []
    finally:
        call_command("migrate", "agentruns", verbosity=0)

    assert "agentruns_agentrun" in leftovers()


def test_runs_that_wait_are_stopped_by_the_reverse_of_what_lets_them_wait(
    sql: psycopg.Connection,
) -> None:
    waiting, answered = AgentRunFactory(waiting=True), AgentRunFactory(waiting=True)
    for run in (waiting, answered):
        said = [("content_delta", {"stream": "text", "delta": f"so far {n} "}) for n in (1, 2)]
        journal(run, ("run_started", {"attempt": 1}), *said)
        QuestionFactory(run=run)
    answer_run(answered, "yes")
    others = [AgentRunFactory(), AgentRunFactory(running=True), AgentRunFactory(failed=True)]
    before = [run.status for run in others]

    try:
        call_command("migrate", "agentruns", "0004", verbosity=0)
    finally:
        call_command("migrate", "agentruns", verbosity=0)

    for run in (waiting, answered):
        run.refresh_from_db()
        newest = run.events.order_by("seq").last()
        reply = Message.objects.get(pk=run.reply_message_id)
        assert (run.status, run.last_seq, newest.type) == ("cancelled", newest.seq, "complete")
        assert newest.payload["message_id"] == str(reply.pk)
        assert (reply.content, reply.status) == ("so far 1 so far 2 ", "partial")
    for run in others:
        run.refresh_from_db()
    assert [run.status for run in others] == before


def test_models_and_migrations_agree() -> None:
    call_command("makemigrations", "agentruns", "--check", "--dry-run", stdout=StringIO())


def test_no_index_names_a_column_that_beats_write(sql: psycopg.Connection) -> None:
    definitions = sql.execute(
        "SELECT indexdef FROM pg_indexes WHERE tablename = 'agentruns_agentrun'"
    ).fetchall()

    for (definition,) in definitions:
        assert "claim_expires_at" not in definition
        assert "last_heartbeat_at" not in definition
