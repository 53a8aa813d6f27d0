"""Try what the product relies on, and say what is wrong and what to do.

Checks look at settings; the doctor asks the database, listens, and calls the project's own ASGI
application. Every probe is read-only.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

from django.core import checks
from django.db import connections
from django.db.migrations.executor import MigrationExecutor

from . import db
from .conf import get_config
from .findings import Finding, Level, Probe
from .hub import Hub
from .models import AgentRun, Conversation, Message, Question, RunEvent, SeenWorker
from .serving import streams
from .status import read_status
from .text import span

LISTEN_SECONDS = 6.0
"""How long a signal of the doctor's own may take."""
OLD_SNAPSHOT_SECONDS = 600
"""A snapshot this old keeps vacuum from cleaning the queue's table."""
SKEW_SECONDS = 2.0
MOST_CONNECTIONS = 0.8
"""Share of `max_connections` above which the doctor warns."""
MODELS = (Conversation, Message, AgentRun, RunEvent, Question, SeenWorker)
TRIGGERS = {
    "status_only_moves_forward": "agentruns_agentrun",
    "journal_rows_never_change": "agentruns_runevent",
}


def examine() -> Iterator[Finding]:
    """Every probe's findings, in order; a probe that breaks is a finding too."""
    yield from _examined("configuration", configuration)
    reached = list(_examined("database", database))
    yield from reached
    if any(finding.level == "error" for finding in reached):
        return
    for name, probe in PROBES.items():
        yield from _examined(name, probe)


def _examined(name: str, probe: Probe) -> Iterator[Finding]:
    try:
        yield from probe()
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0]
        yield Finding(
            name,
            "error",
            f"The probe broke: {type(error).__name__}: {first}",
            "If the message names no cause, look at the database's own log.",
        )


def _row(sql: str, *params: Any) -> Any:
    with db.connection().cursor() as cursor:
        cursor.execute(sql, params)
        return cursor.fetchone()


def configuration() -> Iterator[Finding]:
    found = [message for message in checks.run_checks() if str(message.id).startswith("agentruns.")]
    for message in found:
        level: Level = "error" if message.level >= checks.ERROR else "warning"
        yield Finding("configuration", level, f"{message.id}: {message.msg}", message.hint or "")
    if not found:
        yield Finding("configuration", "ok", "No system check of agentruns complains.")


def database() -> Iterator[Finding]:
    version, standby, read_only = _row(
        "SELECT current_setting('server_version_num')::int, pg_is_in_recovery(),"
        " current_setting('default_transaction_read_only') = 'on'"
    )
    text = f"PostgreSQL {version // 10000}.{version % 10000}"
    if version < 140000:
        yield Finding("database", "error", f"{text} is too old.", "Use PostgreSQL 14 or newer.")
    elif standby or read_only:
        what = "is a standby" if standby else "is read-only"
        yield Finding(
            "database",
            "error",
            f"{text} {what}: nothing can be enqueued, claimed or ended.",
            "Point AGENTRUNS['DATABASE'] at the primary (target_session_attrs=read-write).",
        )
    else:
        yield Finding("database", "ok", f"{text} answers and takes writes.")


def migrations() -> Iterator[Finding]:
    executor = MigrationExecutor(db.connection())
    ours = [key for key in executor.loader.graph.leaf_nodes() if key[0] == "agentruns"]
    missing = [str(migration) for migration, _ in executor.migration_plan(ours)]
    if missing:
        yield Finding(
            "migrations",
            "error",
            f"Not applied: {', '.join(missing)}.",
            "Run `manage.py migrate agentruns`.",
        )
    else:
        yield Finding("migrations", "ok", "All migrations of agentruns are applied.")


def schema() -> Iterator[Finding]:
    missing = list(_missing_relations())
    if missing:
        yield Finding(
            "schema",
            "error",
            f"Missing, invalid or switched off: {', '.join(missing)}.",
            "The guarantees rest on these. Restore them as the migrations of agentruns make them "
            "(REINDEX for an invalid index, ENABLE TRIGGER for one switched off).",
        )
    hot = _row(
        "SELECT string_agg(indexrelid::regclass::text, ', ') FROM pg_index"
        " JOIN pg_attribute ON attrelid = indrelid AND (attnum = ANY(indkey)"
        " OR pg_get_expr(indpred, indrelid) LIKE '%%' || attname || '%%')"
        " WHERE indrelid = 'agentruns_agentrun'::regclass"
        " AND attname IN ('claim_expires_at', 'last_heartbeat_at')"
    )[0]
    if hot:
        yield Finding(
            "schema",
            "warning",
            f"An index names a column that every heartbeat writes: {hot}.",
            "Drop it: with it no heartbeat is a HOT update, and the table bloats.",
        )
    if not missing and not hot:
        yield Finding("schema", "ok", "Indexes, constraints and triggers are as they should be.")


def _missing_relations() -> Iterator[str]:
    for model in MODELS:
        table = model._meta.db_table
        wanted = {item.name for item in (*model._meta.indexes, *model._meta.constraints)}
        found = _row(
            "SELECT array(SELECT relname::text FROM pg_index JOIN pg_class"
            " ON oid = indexrelid WHERE indrelid = %s::regclass AND indisvalid"
            " UNION SELECT conname::text FROM pg_constraint WHERE conrelid = %s::regclass)",
            table,
            table,
        )[0]
        yield from sorted(wanted - set(found))
    for trigger, table in TRIGGERS.items():
        enabled = _row(
            "SELECT tgenabled::text FROM pg_trigger WHERE tgname = %s AND tgrelid = %s::regclass",
            trigger,
            table,
        )
        if enabled is None or enabled[0] == "D":
            yield f"trigger {trigger}"


def signals() -> Iterator[Finding]:
    """LISTEN on the hub's way, NOTIFY on the queue's; in a transaction each, and twice."""
    alias = get_config().listen_alias
    if alias is None:
        yield Finding(
            "signals",
            "warning",
            "LISTEN_DATABASE is None: runs, stops and events are found by polling only.",
            "Name a direct connection in AGENTRUNS['LISTEN_DATABASE'] unless that is meant.",
        )
        return
    heard: list[float] = []
    for _ in range(2):
        seconds = _signal(alias)
        if seconds is None:
            yield Finding(
                "signals",
                "error",
                f"A NOTIFY on {get_config().DATABASE!r} did not arrive by LISTEN on {alias!r} "
                f"within {LISTEN_SECONDS:g} s.",
                "The way leads through a transaction pooler, or the two aliases are two databases. "
                "Set AGENTRUNS['LISTEN_DATABASE'] to an alias with a direct connection to the same "
                "database.",
            )
            return
        heard.append(seconds)
    yield Finding("signals", "ok", f"A signal arrives within {max(heard) * 1000:.0f} ms.")


def _signal(alias: str) -> float | None:
    channel, heard = "agentruns_doctor", threading.Event()
    hub = Hub({channel: lambda payload: heard.set() if payload else None}, alias=alias)
    quiet = logging.getLogger(Hub.__module__)
    quiet.addFilter(_drop)  # the finding says it
    try:
        hub.start()
        deadline = time.monotonic() + LISTEN_SECONDS
        while not hub.hearing and time.monotonic() < deadline:
            time.sleep(0.01)
        began = time.monotonic()
        _row("SELECT pg_notify(%s, 'x')", channel)
        return time.monotonic() - began if heard.wait(max(0.0, deadline - began)) else None
    finally:
        hub.close(timeout=2.0)
        quiet.removeFilter(_drop)


def _drop(record: logging.LogRecord) -> bool:
    return False


def vacuum() -> Iterator[Finding]:
    row = _row(
        # One that wrote in another database holds back every snapshot that is taken in ours.
        "SELECT pid, extract(epoch FROM clock_timestamp() - xact_start)::float8, application_name"
        " FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
        " AND (backend_xid IS NOT NULL"
        " OR backend_xmin IS NOT NULL AND datname = current_database())"
        " ORDER BY xact_start LIMIT 1"
    )
    if row and row[1] and row[1] > OLD_SNAPSHOT_SECONDS:
        yield Finding(
            "vacuum",
            "warning",
            f"Session {row[0]} ({row[2]}) is in a transaction for {span(row[1])}; vacuum cleans "
            "nothing that is younger, and claims slow down.",
            "End that transaction; set idle_in_transaction_session_timeout.",
        )
    slot = _row(
        "SELECT slot_name, age(xmin) FROM pg_replication_slots WHERE NOT active"
        " AND xmin IS NOT NULL ORDER BY 2 DESC LIMIT 1"
    )
    if slot:
        yield Finding(
            "vacuum",
            "warning",
            f"The inactive replication slot {slot[0]!r} holds a snapshot {slot[1]} transactions "
            "old.",
            "Drop the slot, or bring its standby back.",
        )
    if not slot and not (row and row[1] and row[1] > OLD_SNAPSHOT_SECONDS):
        oldest = span(row[1]) if row and row[1] else "none"
        yield Finding("vacuum", "ok", f"Nothing keeps vacuum away (oldest transaction: {oldest}).")


def bloat() -> Iterator[Finding]:
    live, dead, inserted, updated, hot, size = _row(
        "SELECT n_live_tup, n_dead_tup, n_tup_ins, n_tup_upd, n_tup_hot_upd,"
        " pg_relation_size(relid) FROM pg_stat_user_tables"
        " WHERE relid = 'agentruns_agentrun'::regclass"
    )
    # Promotion, claim, end and trim write indexed columns: what is beyond four updates of each run
    # are heartbeats, and nearly all of those can be HOT.
    beats = updated - 4 * inserted
    ratio = hot / updated if updated else 1.0
    text = (
        f"{live} runs, {dead} dead rows, {size / 1e6:.1f} MB; {ratio:.0%} of {updated} updates "
        "were HOT"
    )
    if beats > updated / 2 and ratio < 0.5:
        yield Finding(
            "bloat",
            "warning",
            f"{text}: heartbeats write index entries.",
            "Look for an index on a column that beats write, and at the fillfactor (45).",
        )
    elif dead > 10_000 and dead > live:
        yield Finding(
            "bloat",
            "warning",
            f"{text}: vacuum does not keep up.",
            "See the probe `vacuum`, and the autovacuum settings of agentruns_agentrun.",
        )
    else:
        yield Finding("bloat", "ok", f"{text}.")


def clock_skew() -> Iterator[Finding]:
    before = time.time()
    server = _row("SELECT extract(epoch FROM clock_timestamp())::float8")[0]
    skew = (before + time.time()) / 2 - server
    if abs(skew) > SKEW_SECONDS:
        yield Finding(
            "clock",
            "warning",
            f"This machine's clock is {abs(skew):.1f} s {'ahead of' if skew > 0 else 'behind'} the "
            "database's. Leases don't mind; ids sort wrongly, and tokens may look expired.",
            "Run NTP on both.",
        )
    else:
        yield Finding("clock", "ok", f"This clock and the database's differ by {abs(skew):.2f} s.")


def connection_room() -> Iterator[Finding]:
    used, limit = _row(
        "SELECT (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),"
        " current_setting('max_connections')::int"
        " - current_setting('superuser_reserved_connections')::int"
    )
    text = f"{used} of {limit} connections are taken"
    if used > limit * MOST_CONNECTIONS:
        yield Finding(
            "connections",
            "warning",
            f"{text}.",
            "A worker takes 5, a web process 4 and those of its requests. Use psycopg's pool or "
            "pgbouncer, or raise max_connections.",
        )
    else:
        yield Finding("connections", "ok", f"{text}.")
    full = _row("SELECT pg_notification_queue_usage()")[0]
    if full > 0.1:
        yield Finding(
            "connections",
            "warning",
            f"The notification queue is {full:.0%} full: a session LISTENs and does not read.",
            "Look in pg_stat_activity for a session with LISTEN that is old and in a transaction.",
        )


def pooler() -> Iterator[Finding]:
    config = get_config()
    if not config.pooled:
        return
    given = connections[config.DATABASE].settings_dict
    if not given.get("DISABLE_SERVER_SIDE_CURSORS"):
        yield Finding(
            "pooler",
            "warning",
            f"DATABASE {config.DATABASE!r} counts as pooled, and may use server-side cursors.",
            f"Set DATABASES[{config.DATABASE!r}]['DISABLE_SERVER_SIDE_CURSORS'] = True.",
        )
    if given["OPTIONS"].get("prepare_threshold") is not None:
        yield Finding(
            "pooler",
            "error",
            f"DATABASE {config.DATABASE!r} counts as pooled, and prepares statements.",
            f"Remove prepare_threshold from DATABASES[{config.DATABASE!r}]['OPTIONS'].",
        )


def queue() -> Iterator[Finding]:
    status = read_status()
    live = status.live_workers
    if status.lost:
        yield Finding(
            "queue",
            "error",
            f"{status.lost} lost runs were not ended by a sweep.",
            "Start a worker, or run `manage.py reap --once`; `agentruns why RUN_ID` says more.",
        )
    if not live:
        yield Finding(
            "queue", "warning", "No worker is alive.", "Start one with `manage.py runworker`."
        )
    unknown = sorted(
        agent
        for agent, counts in status.by_agent.items()
        if counts["queued"] and live and not any(agent in worker.agents for worker in live)
    )
    if unknown:
        yield Finding(
            "queue",
            "warning",
            f"No live worker knows the agents of queued runs: {', '.join(unknown)}.",
            "Start a worker with them (`runworker --agents`), or stop those runs.",
        )
    if not status.lost and live and not unknown:
        wait = "none waits" if status.oldest_wait is None else f"oldest {span(status.oldest_wait)}"
        yield Finding(
            "queue",
            "ok",
            f"{status.ready} ready ({wait}), {status.running} running, {status.waiting} waiting "
            f"for an answer, {len(live)} workers alive.",
        )


PROBES: dict[str, Probe] = {
    "migrations": migrations,
    "schema": schema,
    "signals": signals,
    "pooler": pooler,
    "vacuum": vacuum,
    "bloat": bloat,
    "clock": clock_skew,
    "connections": connection_room,
    "streams": streams,
    "queue": queue,
}
