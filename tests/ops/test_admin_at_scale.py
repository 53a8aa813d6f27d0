"""The admin over 100,000 runs: no page walks the table."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from agentruns.models import AgentRun
from tests.factories import AgentRunFactory, UserFactory

RUNS = 100_000

FILL = """
SET LOCAL session_replication_role = replica;
INSERT INTO agentruns_conversation (id, user_id, created_at)
SELECT md5('c' || n)::uuid, %(user)s, clock_timestamp() FROM generate_series(1, %(runs)s / 5) n;
INSERT INTO agentruns_message (id, conversation_id, role, content, status, position)
SELECT md5('m' || n)::uuid, md5('c' || n / 5 + 1)::uuid, 'user', 'Hello', 'sent', n %% 5
FROM generate_series(1, %(runs)s) n;
INSERT INTO agentruns_agentrun (id, conversation_id, user_id, user_message_id, reply_message_id,
    agent, status, turn, error, created_at, started_at, finished_at, trimmed_at)
SELECT (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || '7000'
        || lpad(to_hex(n), 16, '8'))::uuid,
    md5('c' || n / 5 + 1)::uuid, %(user)s, md5('m' || n)::uuid, md5('r' || n)::uuid, 'assistant',
    CASE WHEN n %% 50 = 0 THEN 'failed' ELSE 'completed' END, n %% 5,
    CASE WHEN n %% 50 = 0 THEN '{"code": "agent_error", "message": "The agent failed."}'::jsonb END,
    at, at, at + interval '5 s', at
FROM (SELECT n, clock_timestamp() - (%(runs)s - n) * interval '60 s' AS at
    FROM generate_series(1, %(runs)s) n) made;
SET LOCAL session_replication_role = origin;
"""

PAGES: list[tuple[str, dict[str, str]]] = [
    ("changelist", {}),
    ("changelist", {"p": "199"}),
    ("changelist", {"status__exact": "running"}),
    ("changelist", {"status__exact": "queued"}),
    ("changelist", {"code": "agent_error"}),
    ("changelist", {"attention": "lost"}),
    ("changelist", {"attention": "stopping"}),
    ("changelist", {"attention": "waiting"}),
    ("changelist", {"age": "1h"}),
    ("changelist", {"q": "somebody"}),
    ("changelist", {"q": "{run}"}),
    ("dashboard", {}),
    ("change", {}),
    ("journal", {"after": "3"}),
]


@pytest.mark.django_db
@pytest.mark.timeout(300)
def test_no_page_walks_the_table() -> None:
    somebody = UserFactory(username="somebody")
    with connection.cursor() as cursor:
        cursor.execute(FILL, {"user": somebody.pk, "runs": RUNS})
    AgentRunFactory.create_batch(5, running=True)
    AgentRunFactory.create_batch(5)
    run = AgentRunFactory(failed=True)
    with connection.cursor() as cursor:
        for table in ("conversation", "message", "agentrun", "runevent"):
            cursor.execute(f"ANALYZE agentruns_{table}")
    assert AgentRun.objects.count() > RUNS
    client = Client()
    client.force_login(UserFactory(is_staff=True, is_superuser=True))

    walked = {}
    for page, query in PAGES:
        given = {key: value.format(run=run.pk) for key, value in query.items()}
        with CaptureQueriesContext(connection) as queries:
            response = client.get(address(page, run), given)
        assert response.status_code == 200
        assert len(queries) <= 20
        for query_ in queries:
            if plan := walks(query_["sql"]):
                walked[page, *query.items()] = plan

    assert walked == {}


BIG = re.compile(r"Seq Scan on agentruns_(?:agentrun|message|conversation)\b")


def address(page: str, run: AgentRun) -> str:
    if page in ("dashboard", "journal"):
        return reverse(f"admin:agentruns_{page}", args=[run.pk] if page == "journal" else [])
    return reverse(f"admin:agentruns_agentrun_{page}", args=[run.pk] if page == "change" else [])


def walks(sql: str) -> Any:
    """The plan of a statement that reads a big table from end to end; None: it does not."""
    if not sql.startswith("SELECT") or "agentruns_" not in sql or "FOR NO KEY" in sql:
        return None
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN {sql}")
        plan = "\n".join(line for (line,) in cursor.fetchall())
    # Right under a limit, a scan in any order ends early.
    ends_early = re.compile(r"Limit .*\n\s*->  Seq Scan on \w+")
    return plan if BIG.search(ends_early.sub("", plan)) else None
