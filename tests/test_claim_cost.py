"""What a claim costs and takes, whatever stands in the tables and whatever the planner believes.

Cost is counted in buffers, which are the same on every machine; each claim is rolled back.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import connection, transaction

from agentruns.claim import Mark, claim, new_tokens
from agentruns.models import AgentRun

from .factories import UserFactory

pytestmark = pytest.mark.django_db(transaction=True)

LEASE = timedelta(seconds=30)
AGENT = "cost"


def execute(text: str, params: list[Any] | None = None) -> None:
    with connection.cursor() as cursor:
        cursor.execute(text, params)


def analyze() -> None:
    execute("ANALYZE agentruns_agentrun")


def conversations(count: int) -> None:
    user = UserFactory()
    execute(
        """INSERT INTO agentruns_conversation (id, user_id)
        SELECT gen_random_uuid(), %s FROM generate_series(1, %s)""",
        [user.pk, count],
    )
    execute(
        """INSERT INTO agentruns_message (id, conversation_id, role, status)
        SELECT gen_random_uuid(), id, 'user', 'queued' FROM agentruns_conversation c
        WHERE NOT EXISTS (SELECT FROM agentruns_message m WHERE m.conversation_id = c.id)"""
    )


def runs(each: int, columns: str = "", values: str = "", *, status: str = "queued") -> None:
    """In every conversation that has no run of this status, `each` runs."""
    execute(
        f"""INSERT INTO agentruns_agentrun (id, conversation_id, user_id, user_message_id,
            reply_message_id, agent, turn, input, status {columns})
        SELECT gen_random_uuid(), c.id, c.user_id, m.id, gen_random_uuid(), '{AGENT}', number,
            '{{"content": "hello there, what is this about?"}}', '{status}' {values}
        FROM agentruns_conversation c JOIN agentruns_message m ON m.conversation_id = c.id,
            generate_series(1, {each}) number
        WHERE NOT EXISTS (SELECT FROM agentruns_agentrun r
            WHERE r.conversation_id = c.id AND r.status = '{status}')"""
    )


CLAIM_COLUMNS = ", claim_token, claim_expires_at, started_at, worker_id"
CLAIM_VALUES = ", gen_random_uuid(), now() + interval '1 hour', now(), 'host:1:cost'"


def busy(count: int) -> None:
    """So many conversations in which a turn runs."""
    conversations(count)
    runs(1, CLAIM_COLUMNS, CLAIM_VALUES, status="running")


def startable(count: int) -> None:
    """So many conversations with one turn that may start."""
    conversations(count)
    execute(
        f"""INSERT INTO agentruns_agentrun (id, conversation_id, user_id, user_message_id,
            reply_message_id, agent, turn, status, ready_at)
        SELECT gen_random_uuid(), c.id, c.user_id, m.id, gen_random_uuid(), '{AGENT}', 1, 'queued',
            clock_timestamp()
        FROM agentruns_conversation c JOIN agentruns_message m ON m.conversation_id = c.id
        WHERE NOT EXISTS (SELECT FROM agentruns_agentrun r WHERE r.conversation_id = c.id)"""
    )


def ended(count: int) -> None:
    conversations(100)
    runs(
        count // 100,
        CLAIM_COLUMNS + ", finished_at, last_seq",
        CLAIM_VALUES + ", now(), 9",
        status="completed",
    )


def one_busy_conversation() -> None:
    busy(1)
    runs(10_000)


def thousand_busy_conversations() -> None:
    busy(1000)
    runs(10)


def fifty_thousand_ended() -> None:
    ended(50_000)


def statement_of_claim(count: int, mark: Mark | None) -> tuple[str, Any]:
    """The statement that a claim sends, and its parameters."""
    sent: list[tuple[str, Any]] = []

    def note(execute: Any, text: Any, params: Any, many: Any, context: Any) -> Any:
        sent.append((text, params))
        return execute(text, params, many, context)

    with transaction.atomic(), connection.execute_wrapper(note):
        claim([AGENT], new_tokens(count), "host:1:cost", lease=LEASE, mark=mark)
        transaction.set_rollback(True)
    (statement,) = sent
    return statement


def buffers_of_claim(count: int, mark: Mark | None = None) -> int:
    """Buffers that a claim touches; it is taken back."""
    text, params = statement_of_claim(count, mark)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {text}", params)
        (answer,) = cursor.fetchone()
        transaction.set_rollback(True)
    plan = (json.loads(answer) if isinstance(answer, str) else answer)[0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def costs(mark: Mark | None = None) -> dict[str, int]:
    """Buffers of a poll that finds nothing, of a claim of one, and of a claim of twenty."""
    found = {"nothing": buffers_of_claim(20, mark)}
    startable(1)
    found["one"] = buffers_of_claim(1, mark)
    startable(19)
    found["twenty"] = buffers_of_claim(20, mark)
    execute("VACUUM agentruns_agentrun")
    return found


def quiet() -> None:
    """Nothing but a few ended runs: what the others are compared to."""
    ended(1000)


CROWDS = {
    "10,000 turns behind one busy conversation": one_busy_conversation,
    "10,000 turns behind 1,000 busy conversations": thousand_busy_conversations,
    "50,000 ended runs": fifty_thousand_ended,
}
STATISTICS = ("of an empty table", "of two that run", "of now")


def crowd(fill: Callable[[], None], statistics: str) -> None:
    execute("TRUNCATE agentruns_conversation CASCADE")
    if statistics == "of two that run":
        busy(2)
        analyze()
        execute("TRUNCATE agentruns_conversation CASCADE")
    analyze()  # of an empty table: what was known of its columns stays
    fill()
    if statistics == "of now":
        analyze()


@pytest.mark.parametrize("statistics", STATISTICS)
@pytest.mark.parametrize("fill", CROWDS.values(), ids=CROWDS.keys())
def test_a_claim_costs_the_same_whatever_waits_or_has_ended(
    fill: Callable[[], None], statistics: str
) -> None:
    crowd(quiet, statistics)
    alone = costs()

    crowd(fill, statistics)
    crowded = costs()

    for name, buffers in crowded.items():
        assert buffers <= 1.3 * alone[name] + 4, f"{name}: {crowded} instead of {alone}"


def test_dead_entries_cost_a_claim_that_looks_on_from_its_mark_nothing(
    plain: psycopg.Connection,
) -> None:
    """A transaction that stays open keeps the entries of 2,000 claimed runs in the index."""
    crowd(quiet, "of now")
    alone = costs()
    execute("DELETE FROM agentruns_agentrun WHERE status = 'queued'")
    plain.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    plain.execute("SELECT count(*) FROM agentruns_agentrun")
    startable(2000)
    mark = Mark()

    while claim([AGENT], new_tokens(500), "host:1:cost", lease=LEASE, mark=mark):
        pass

    from_the_beginning = buffers_of_claim(20)
    crowded = costs(Mark(mark.since))
    assert from_the_beginning > 20 * crowded["nothing"], "there were no dead entries to walk over"
    for name, buffers in crowded.items():
        assert buffers <= 1.5 * alone[name] + 8, f"{name}: {crowded} instead of {alone}"


@pytest.fixture
def plain(transactional_db: None) -> Iterator[psycopg.Connection]:
    params = connection.get_connection_params()
    wanted = ("host", "port", "user", "password", "dbname")
    arguments = {key: params[key] for key in wanted if params.get(key)}
    with psycopg.connect(**arguments) as opened:
        yield opened
        opened.rollback()


@pytest.mark.parametrize("count", [1, 20])
@pytest.mark.parametrize(
    "lie",
    [
        pytest.param((), id="never analysed"),
        pytest.param((analyze,), id="analysed empty"),
        pytest.param((quiet, analyze), id="analysed while nothing was queued"),
    ],
)
def test_a_claim_takes_no_more_than_asked_whatever_the_statistics(
    lie: tuple[Callable[[], None], ...], count: int
) -> None:
    for step in lie:
        step()
    startable(200)
    # Often enough for the server to think of a generic plan, where it prepares statements.
    connection.ensure_connection()
    raw: Any = connection.connection
    raw.prepare_threshold = 0

    sizes = [len(claim([AGENT], new_tokens(count), "host:1:cost", lease=LEASE)) for _ in range(10)]

    assert sizes == [count] * 10
    assert AgentRun.objects.running().count() == 10 * count


def test_a_plan_made_for_one_row_takes_no_more_than_asked_of_two_thousand() -> None:
    connection.ensure_connection()
    raw: Any = connection.connection
    raw.prepare_threshold = 0
    execute("SET plan_cache_mode = force_generic_plan")
    startable(1)
    analyze()
    for _ in range(8):
        claim([AGENT], new_tokens(1), "host:1:cost", lease=LEASE)
    startable(2000)

    taken = claim([AGENT], new_tokens(1), "host:1:cost", lease=LEASE)

    assert len(taken) == 1
    connection.close()
