"""Rows by the hundred thousand: what enqueue writes, written by one statement."""

from __future__ import annotations

from typing import Any

import psycopg

TABLES = "agentruns_runevent, agentruns_agentrun, agentruns_message, agentruns_conversation"

# UUIDs of version 7, in the order of `number`: as ids of real runs, they fill indexes at the right.
_SETUP = """
CREATE OR REPLACE FUNCTION bench_id(kind int, number bigint) RETURNS uuid IMMUTABLE LANGUAGE sql AS
$$ SELECT (lpad(to_hex(1700000000000 + number), 12, '0') || '7' || lpad(to_hex(kind), 3, '0')
    || '8' || right(md5(kind::text || '-' || number::text), 15))::uuid $$;
CREATE OR REPLACE FUNCTION bench_place(number bigint, first bigint, conversations bigint)
RETURNS uuid IMMUTABLE LANGUAGE sql AS
$$ SELECT bench_id(1, first + (number - 1) % conversations + 1) $$
"""

_CONVERSATIONS = """
INSERT INTO agentruns_conversation (id, user_id, last_turn)
SELECT bench_id(1, %(from)s + number), %(user)s, %(turns)s
FROM generate_series(1, %(conversations)s) number
"""

_MESSAGES = """
INSERT INTO agentruns_message (id, conversation_id, role, content, status)
SELECT bench_id(2, %(from)s + number), bench_place(number, %(from)s, %(conversations)s),
    'user', 'Hello', 'queued'
FROM generate_series(1, %(runs)s) number
"""

_RUNS = """
INSERT INTO agentruns_agentrun (id, conversation_id, user_id, user_message_id, reply_message_id,
    agent, status, input, metadata, turn, ready_at, claim_token, claim_expires_at, started_at,
    finished_at, last_seq)
SELECT bench_id(3, %(from)s + number), bench_place(number, %(from)s, %(conversations)s),
    %(user)s, bench_id(2, %(from)s + number), bench_id(4, %(from)s + number), %(agent)s::text,
    %(status)s::text, '{"content": "Hello", "agent": "noop", "metadata": {}}', '{}',
    (number - 1) / %(conversations)s + 1,
    CASE WHEN %(ready)s AND number <= %(conversations)s
        THEN now() - interval '1 hour' * %(age)s + interval '1 microsecond' * number END,
    CASE WHEN %(status)s::text <> 'queued' THEN gen_random_uuid() END,
    CASE WHEN %(status)s::text <> 'queued' THEN now() + interval '1 day' END,
    CASE WHEN %(status)s::text <> 'queued' THEN now() END,
    CASE WHEN %(status)s::text NOT IN ('queued', 'running') THEN now() END,
    CASE WHEN %(status)s::text NOT IN ('queued', 'running') THEN 4 END
FROM generate_series(1, %(runs)s) number
"""

_EVENTS = """
INSERT INTO agentruns_runevent (run_id, seq, type, payload)
SELECT bench_id(3, %(from)s + number), seq, (ARRAY['user_message_created', 'run_queued'])[seq],
    '{"message_id": "01934f0e-0000-7000-8000-000000000000"}'
FROM generate_series(1, %(runs)s) number, generate_series(1, 2) seq
"""


def clear(connection: psycopg.Connection[Any]) -> None:
    connection.execute(f"TRUNCATE {TABLES} CASCADE")


def clear_unfinished(connection: psycopg.Connection[Any]) -> None:
    """Leave the history alone: a million rows take a minute to write."""
    with connection.transaction():
        connection.execute("SET LOCAL session_replication_role = replica")
        connection.execute("DELETE FROM agentruns_agentrun WHERE finished_at IS NULL")
    connection.execute("VACUUM (ANALYZE) agentruns_agentrun")


def fill(
    connection: psycopg.Connection[Any],
    runs: int,
    *,
    conversations: int | None = None,
    status: str = "queued",
    ready: bool = True,
    first: int = 0,
    events: bool = True,
    agent: str = "noop",
    age: float = 0.0,
    user: int = 1,
    analyzed: bool = True,
) -> None:
    """Add `runs` turns spread over `conversations` (default: one each).

    `first` keeps the ids of several fills apart. `ready` marks the first turn of each conversation;
    `age` is how many hours ago it became ready.
    """
    values = {
        "from": first,
        "runs": runs,
        "conversations": conversations or runs,
        "status": status,
        "ready": ready and status == "queued",
        "agent": agent,
        "age": age,
        "user": user,
        "turns": -(-runs // (conversations or runs)),
    }
    connection.execute(_SETUP)
    with connection.transaction():
        # The rows fit each other by construction: a check of each foreign key takes longer.
        connection.execute("SET LOCAL session_replication_role = replica")
        for statement in (_CONVERSATIONS, _MESSAGES, _RUNS, *([_EVENTS] if events else [])):
            connection.execute(statement, values)
    if analyzed:
        connection.execute(f"VACUUM (ANALYZE) {TABLES}")


_BLOCKED = """
INSERT INTO agentruns_agentrun (id, conversation_id, user_id, user_message_id, reply_message_id,
    agent, status, input, metadata, turn)
SELECT bench_id(5, %(from)s + number), bench_place(number, %(from)s, %(conversations)s),
    (SELECT min(id) FROM auth_user), bench_id(2, %(from)s + (number - 1) %% %(conversations)s + 1),
    bench_id(6, %(from)s + number), 'noop', 'queued', '{}', '{}', number / %(conversations)s + 2
FROM generate_series(1, %(runs)s) number
"""


def block(
    connection: psycopg.Connection[Any], runs: int, *, conversations: int, first: int
) -> None:
    """Add `runs` turns that wait, to conversations that an earlier `fill` made."""
    values = {"from": first, "runs": runs, "conversations": conversations}
    connection.execute(_BLOCKED, values)
    connection.execute(f"VACUUM (ANALYZE) {TABLES}")
