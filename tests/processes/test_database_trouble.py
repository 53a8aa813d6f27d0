"""Databases that go away, fall silent, refuse, or lose the answer: loops recover by themselves,
nothing is lost and nothing is doubled.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from django.db import connection, transaction

from agentruns import stop_run
from agentruns.models import Message
from tests.support import pointed_at, until

from .cluster import Cluster, Standby
from .history import (
    check_all,
    counted,
    ended,
    enqueue,
    outcome,
    reply_of,
    started,
    text_of,
)
from .proxy import Proxy
from .worker import WorkerProcess

Start = Callable[..., WorkerProcess]
PATIENT = {"LEASE_SECONDS": 60, "GRACE_SECONDS": 60}


@pytest.fixture
def proxy(database: str) -> Iterator[Proxy]:
    proxy = Proxy(database)
    yield proxy
    proxy.close()


def backends(name: str, *, waiting: bool = False) -> set[int]:
    """The server processes of that name; `waiting`: those that wait for a lock."""
    # On a connection of its own: a transaction sees one and the same state all the time.
    with psycopg.connect(**connection.get_connection_params()) as own:
        found = own.execute(
            "SELECT pid FROM pg_stat_activity WHERE application_name = %s "
            "AND datname = current_database() AND (wait_event_type = 'Lock' OR NOT %s)",
            [name, waiting],
        )
        return {pid for (pid,) in found}


def execute(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


def test_each_connection_of_a_worker_may_be_terminated(start: Start, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    worker = start(**PATIENT)
    run = started(enqueue(None, "count", gate=str(gate)))
    for name in ("claim", "heartbeat", "journal", "reaper", "hub"):
        old = backends(f"agentruns {name}")
        assert len(old) == 1, name
        execute(f"SELECT pg_terminate_backend({old.pop()})")
        other = enqueue(None, "count", to=3)  # gives every loop something to do
        new = until(lambda name=name: backends(f"agentruns {name}"), f"a new connection: {name}")
        assert new != old
        assert outcome(ended(other)) == ("completed", None)
    gate.touch()

    assert outcome(ended(run)) == ("completed", None)
    assert counted(reply_of(run) or "")
    worker.wait_for_log("hub: hearing again")


def test_a_restart_of_the_server_under_30_streams_costs_nothing(
    start: Start, cluster: Cluster, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    for _ in range(2):
        start("--concurrency", "15", **PATIENT)
    runs = [enqueue(None, "count", gate=str(gate)) for _ in range(30)]
    for run in runs:
        started(run)
    cluster.restart()
    said = {run.pk: len(text_of(run)) for run in runs}
    for run in runs:
        started(run, chars=said[run.pk] + 20)
    gate.touch()

    assert {outcome(ended(run)) for run in runs} == {("completed", None)}
    assert all(counted(reply_of(run) or "") for run in runs)
    check_all([run.conversation for run in runs])


def test_a_claim_whose_answer_was_lost_is_adopted(start: Start, proxy: Proxy) -> None:
    worker = start("--worker-id", "unheard", database=proxy.url, POLL_SECONDS=3600, **PATIENT)
    ended(enqueue(None, "count", to=1))
    proxy.drop_answer_to("agentruns claim", b"unheard")
    run = enqueue(None, "count", to=3)

    assert outcome(ended(run)) == ("completed", None)
    assert proxy.sprung.is_set()
    assert reply_of(run) == "0 1 2 "
    assert worker.count("adopted 1 runs") == 1


def test_a_lost_claim_that_is_still_under_way_is_not_looked_for_too_early(
    start: Start, proxy: Proxy, tmp_path: Path
) -> None:
    """The connection is gone, and the server still waits for a lock before it takes the run."""
    gate = tmp_path / "gate"
    worker = start("--concurrency", "1", database=proxy.url, **PATIENT)
    first = started(enqueue(None, "count", gate=str(gate)))
    run = enqueue(None, "count", to=3)
    with transaction.atomic():
        Message.objects.select_for_update().get(pk=run.user_message_id)
        gate.touch()
        [old] = until(
            lambda: backends("agentruns claim", waiting=True), "the claim to wait for the lock"
        )
        proxy.cut()
        worker.wait_for_log("WARNING claim: cannot claim")
        until(lambda: backends("agentruns claim") - {old}, "a new connection")

    assert outcome(ended(run)) == ("completed", None)
    assert outcome(ended(first)) == ("completed", None)


@pytest.mark.parametrize("value", [b"content_delta", b"completed"], ids=["flush", "ending"])
def test_what_was_stored_without_an_answer_is_stored_once(
    start: Start, proxy: Proxy, value: bytes
) -> None:
    worker = start(database=proxy.url, **PATIENT)
    ended(enqueue(None, "count", to=1))
    proxy.drop_answer_to("agentruns journal", value)
    run = enqueue(None, "count", to=30)
    following = enqueue(run.conversation, "count", to=2)

    assert outcome(ended(run)) == ("completed", None)
    assert proxy.sprung.wait(0)
    assert reply_of(run) == "".join(f"{n} " for n in range(30))
    assert outcome(ended(following)) == ("completed", None)
    assert "duplicate key" not in worker.log
    check_all([run.conversation])


def test_a_half_open_listening_connection_is_noticed(start: Start, proxy: Proxy) -> None:
    worker = start(
        LISTEN_DATABASE="listen",
        LISTEN_DATABASE_URL=proxy.url,
        LEASE_SECONDS=3600,
        HEARTBEAT_SECONDS=1700,
        POLL_SECONDS=1,
    )
    until(lambda: backends("agentruns hub"), "the hub's connection")
    proxy.fall_silent()

    worker.wait_for_log("hub: not hearing")
    run = started(enqueue(None, "count"))  # found by the poll
    proxy.speak_again()
    worker.wait_for_log("hub: hearing again")
    stop_run(run)
    assert outcome(ended(run)) == ("cancelled", None)


def test_a_worker_cut_off_by_a_silent_network_stops_its_agents_at_the_end_of_its_lease(
    start: Start, proxy: Proxy, tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    worker = start("--no-reap", database=proxy.url, DRAIN_SECONDS=0)
    run = started(enqueue(None, "exiting", trace=str(trace)))
    start()  # whose reaper ends the run when lease and grace are over
    proxy.fall_silent()

    assert outcome(ended(run)) == ("failed", "worker_lost")
    reaped = time.monotonic()
    worker.wait_for_log("the lease could not be renewed")
    proxy.speak_again()
    worker.wait_for_log("journal: stored again")
    assert worker.drain() == 0
    effects = [line.split() for line in trace.read_text().splitlines()]
    assert effects[-1][1] == "cancelled"
    assert all(float(moment) < reaped for moment, _ in effects)
    check_all([run.conversation])


def test_a_worker_that_is_back_before_the_reaper_ends_its_lost_run_itself(
    start: Start, proxy: Proxy
) -> None:
    worker = start(database=proxy.url, GRACE_SECONDS=600)
    run = started(enqueue(None, "count"))
    proxy.fall_silent()
    worker.wait_for_log("the lease could not be renewed")
    proxy.speak_again()

    assert outcome(ended(run)) == ("failed", "worker_lost")
    assert counted(reply_of(run) or "")
    following = enqueue(run.conversation, "count", to=2)
    assert outcome(ended(following)) == ("completed", None)


def test_a_drain_on_a_silent_network_ends_with_0(start: Start, proxy: Proxy) -> None:
    worker = start(database=proxy.url, DRAIN_SECONDS=1)
    started(enqueue(None, "count"))
    proxy.fall_silent()

    assert worker.drain() == 0


def test_a_worker_without_a_free_connection_says_so_once_and_recovers(
    start: Start, database: str, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    execute("DROP ROLE IF EXISTS limited")
    execute("CREATE ROLE limited LOGIN PASSWORD 'limited'")
    execute("GRANT ALL ON ALL TABLES IN SCHEMA public TO limited")
    execute("GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO limited")
    login = database.split("@")[0]
    worker = start(database=database.replace(login, "postgresql://limited:limited"), **PATIENT)
    run = started(enqueue(None, "count", gate=str(gate)))
    execute("ALTER ROLE limited CONNECTION LIMIT 0")
    execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'limited'")
    for loop in ("heartbeat", "journal", "hub"):
        worker.wait_for_log(f"WARNING {loop}: .*too many connections")
    execute("ALTER ROLE limited CONNECTION LIMIT -1")
    said = len(text_of(run))
    started(run, chars=said + 20)
    gate.touch()

    assert outcome(ended(run)) == ("completed", None)
    assert counted(reply_of(run) or "")
    assert worker.count("WARNING journal: .*too many connections") == 1
    execute("DROP OWNED BY limited")
    worker.destroy()
    execute("DROP ROLE limited")


def test_a_read_only_node_costs_nothing_but_time(
    start: Start, database: str, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    name = database.rsplit("/", 1)[1]
    worker = start(**PATIENT)
    run = started(enqueue(None, "count", gate=str(gate)))
    execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE application_name LIKE 'agentruns%'"
    )
    worker.wait_for_log("journal: .*read-only")
    worker.wait_for_log("heartbeat: .*read-only")
    execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")
    said = len(text_of(run))
    started(run, chars=said + 20)
    gate.touch()

    assert outcome(ended(run)) == ("completed", None)
    assert counted(reply_of(run) or "")


def test_a_locked_table_makes_the_loops_time_out_say_so_once_and_recover(
    start: Start, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    worker = start(LEASE_SECONDS=20, GRACE_SECONDS=60)
    run = started(enqueue(None, "count", gate=str(gate)))
    with transaction.atomic():
        execute("LOCK TABLE agentruns_agentrun")
        for loop in ("journal", "heartbeat", "reaper"):
            worker.wait_for_log(f"WARNING {loop}: could not")
    said = len(text_of(run))
    started(run, chars=said + 20)
    gate.touch()

    assert outcome(ended(run)) == ("completed", None)
    assert counted(reply_of(run) or "")
    assert worker.count("WARNING journal: could not") == 1


def test_a_database_that_is_down_for_long_makes_no_hot_loop(start: Start, cluster: Cluster) -> None:
    worker = start(**PATIENT)
    run = started(enqueue(None, "count", pause=0.2))
    with cluster.down():
        worker.wait_for_log("could not store")
        lines, cpu, began = worker.log.count("\n"), worker.cpu_seconds, time.monotonic()
        until(lambda: time.monotonic() > began + 8, "a long time")
        busy = (worker.cpu_seconds - cpu) / (time.monotonic() - began)
        said = worker.log.count("\n") - lines
    stop_run(run)

    assert outcome(ended(run)) == ("cancelled", None)
    assert busy < 0.3
    # Five loops, each of which says each reason once: cut off, refused, not yet accepting.
    assert said <= 15, worker.log


def test_a_failover_to_a_promoted_standby_costs_no_run(
    start: Start, cluster: Cluster, database: str, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    with Standby(cluster) as standby:
        worker = start(database=standby.url_of_both(database), **PATIENT)
        run = started(enqueue(None, "count", gate=str(gate)))
        with cluster.down():
            standby.promote()
            with pointed_at(standby.url(database)):
                said = len(text_of(run))
                started(run, chars=said + 20)
                gate.touch()
                assert outcome(ended(run)) == ("completed", None)
                assert counted(reply_of(run) or "")
                assert worker.drain() == 0
