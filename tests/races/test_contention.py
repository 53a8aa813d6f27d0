"""Many connections at once, and rows that somebody holds: what must not wait, and what must.

Where a test is about a wait, the wait is seen with `pg_blocking_pids`; where it is about a row that
is held, the row is held by an open transaction while the others work.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from django.db import IntegrityError, connection, connections

from agentruns.claim import claim, new_tokens
from agentruns.enqueue import enqueue_runs
from agentruns.finalize import Ended
from agentruns.journal import Standing, append
from agentruns.lease import heartbeat
from agentruns.models import AgentRun, RunEvent, RunStatus
from agentruns.reaper import Reaper, reap
from agentruns.stop import stop_conversation

from . import world as worlds
from .driver import wait_until
from .invariants import Tables, check_tables
from .world import AGENT, GRACE, LEASE, RETENTION, ask, delta, end, move, say, take

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def plain(transactional_db: None) -> Iterator[Callable[[], psycopg.Connection]]:
    """Opens connections of the kind that psql has, and ends them with the test."""
    params = connection.get_connection_params()
    wanted = ("host", "port", "user", "password", "dbname")
    arguments = {key: params[key] for key in wanted if params.get(key)}
    opened: list[psycopg.Connection] = []

    def open_() -> psycopg.Connection:
        opened.append(psycopg.connect(**arguments))
        return opened[-1]

    yield open_
    for each in opened:
        each.close()


def together(verbs: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run the verbs at the same moment, each on a connection of its own; what they returned."""
    gate = threading.Barrier(len(verbs), timeout=30)

    def one(verb: Callable[[], Any]) -> Any:
        try:
            connection.ensure_connection()
            gate.wait()
            return verb()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(verbs)) as threads:
        return [future.result(60) for future in [threads.submit(one, verb) for verb in verbs]]


@contextmanager
def locked(holder: psycopg.Connection, table: str, row_id: Any) -> Iterator[None]:
    """Hold a row, as a transaction does that has written it and not committed."""
    holder.execute(f"SELECT FROM {table} WHERE id = %s FOR NO KEY UPDATE", [row_id])
    try:
        yield
    finally:
        holder.rollback()


def waits_for(holder: psycopg.Connection) -> list[int]:
    """The sessions that wait for a lock of this one, as PostgreSQL sees it."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pid FROM pg_stat_activity WHERE %s = ANY(pg_blocking_pids(pid))",
            [holder.info.backend_pid],
        )
        return [pid for (pid,) in cursor.fetchall()]


def fill(conversations: int, turns: int = 1) -> None:
    owner = worlds.owner()
    for _ in range(conversations):
        first = ask(user=owner)
        for _ in range(turns - 1):
            ask(first.conversation_id, user=owner)


def test_of_eighty_claims_at_once_eighty_succeed() -> None:
    fill(80, turns=2)

    def eight_claims() -> list[Any]:
        return [taken for _ in range(8) for taken in take()]

    taken = [claimed for claims in together([eight_claims] * 10) for claimed in claims]

    assert len({claimed.run_id for claimed in taken}) == 80
    assert AgentRun.objects.running().count() == 80
    check_tables(Tables())


def test_two_claimers_share_one_queue_without_waiting(plain: Callable[[], Any]) -> None:
    fill(2)
    first = plain()
    with locked(first, "agentruns_agentrun", AgentRun.objects.startable([AGENT])[0].pk):
        second = take(2)

        assert [claimed.run_id for claimed in second] == [
            run.pk for run in AgentRun.objects.running()
        ]
        assert len(second) == 1
    assert len(take(2)) == 1


def test_a_frozen_claimer_stalls_nobody(plain: Callable[[], Any]) -> None:
    """Its claim stands uncommitted, with 30 turns behind it; the others take all the rest."""
    fill(10, turns=4)
    frozen = plain()
    frozen.execute(
        """UPDATE agentruns_agentrun SET status = 'running', claim_token = gen_random_uuid(),
        claim_expires_at = now(), started_at = now() WHERE id = (SELECT id FROM agentruns_agentrun
        WHERE status = 'queued' AND ready_at IS NOT NULL ORDER BY ready_at, id LIMIT 1)"""
    )

    taken = [claimed for claims in together([lambda: take(3)] * 4) for claimed in claims]

    assert len(taken) == 9
    assert waits_for(frozen) == []
    frozen.rollback()
    assert len(take(3)) == 1


def test_a_younger_turn_does_not_overtake_its_elder_that_is_locked(
    plain: Callable[[], Any],
) -> None:
    first = ask()
    ask(first.conversation_id)
    with locked(plain(), "agentruns_agentrun", first.pk):
        assert take(2) == []

    assert [claimed.run_id for claimed in take(2)] == [first.pk]


def test_a_locked_run_delays_no_other_runs_beats_and_flushes(plain: Callable[[], Any]) -> None:
    fill(3)
    held, *others = take(3)
    fences = [held.fence, *(claimed.fence for claimed in others)]
    with locked(plain(), "agentruns_agentrun", held.run_id):
        beats = heartbeat(fences, lease=LEASE)
        stored = append([(fence, [delta(fence.run_id, 4, "a")]) for fence in fences])

    for answers in ({run_id: beat.standing for run_id, beat in beats.items()}, stored):
        assert answers.pop(held.run_id) is Standing.LOCKED
        assert set(answers.values()) == {Standing.HELD}
    assert RunEvent.objects.filter(seq=4).count() == 2
    assert heartbeat([held.fence], lease=LEASE)[held.run_id].standing is Standing.HELD


def test_a_locked_conversation_delays_no_other_runs_ending(plain: Callable[[], Any]) -> None:
    fill(2)
    held, free = take(2)
    with locked(plain(), "agentruns_conversation", held.conversation_id):
        assert end(held).standing is Standing.LOCKED
        assert end(free).standing is Standing.HELD

    assert end(held).standing is Standing.HELD


def test_a_reaper_leaves_a_run_alone_that_beats_at_that_moment(plain: Callable[[], Any]) -> None:
    """The beat is under way, uncommitted, when the reaper comes."""
    world = worlds.busy()
    beating = plain()
    beating.execute(
        "UPDATE agentruns_agentrun SET claim_expires_at = now() + interval '30 s' WHERE id = %s",
        [world.running.run_id],
    )

    assert not worlds.reaps(world)

    beating.commit()
    assert not worlds.reaps(world)
    assert AgentRun.objects.fenced(world.running.fence).exists()


def test_three_reapers_end_fifty_orphans_once_each() -> None:
    fill(50, turns=2)
    for claimed in take(50):
        say(claimed, "so far")
        move(claimed.run_id, claim_expires_at="now() - interval '1 hour'")

    def sweeps() -> int:
        return Reaper(grace=GRACE, retention=RETENTION).sweep(whole=True).reaped

    reaped = together([sweeps] * 3)

    # A row that two look at in the same moment is left to the other; the next sweep finds none.
    assert sum(reaped) == 50
    assert RunEvent.objects.filter(type="complete").count() == 50
    check_tables(Tables())


def test_a_stop_waits_for_a_claim_under_way_and_then_reaches_its_run(
    plain: Callable[[], Any],
) -> None:
    first = ask()
    claiming = plain()
    claiming.execute(
        """UPDATE agentruns_agentrun SET status = 'running', claim_token = gen_random_uuid(),
        claim_expires_at = now(), started_at = now() WHERE id = %s""",
        [first.pk],
    )
    with ThreadPoolExecutor(1) as thread:
        stop = functools.partial(stop_conversation, first.conversation_id)
        stopping = thread.submit(together, [stop])
        wait_until(lambda: bool(waits_for(claiming)), "the stop waits for the claim")
        claiming.commit()
        (stopped,) = stopping.result(30)

    assert stopped.stopping == [first.pk]
    first.refresh_from_db()
    assert first.cancel_requested


def test_an_enqueue_waits_for_a_stop_and_its_turn_then_starts(plain: Callable[[], Any]) -> None:
    first = ask()
    stopping = plain()
    with (
        ThreadPoolExecutor(1) as thread,
        locked(stopping, "agentruns_conversation", first.conversation_id),
    ):
        asking = thread.submit(together, [functools.partial(ask, first.conversation_id)])
        wait_until(lambda: bool(waits_for(stopping)), "the enqueue waits for the stop")
        stopping.execute(
            """UPDATE agentruns_agentrun SET status = 'cancelled', finished_at = now()
            WHERE id = %s""",
            [first.pk],
        )
        stopping.commit()
        (second,) = asking.result(30)

    assert second.ready_at is not None


def test_enqueue_at_the_exact_end_of_a_turn_never_leaves_a_turn_behind() -> None:
    """Two hundred times: the one ends turn 1 while the other enqueues turn 2."""
    fill(200)
    taken = take(200)
    owner = worlds.owner()

    def ends() -> list[Ended]:
        return [until_held(functools.partial(end, claimed)) for claimed in taken]

    def asks() -> list[AgentRun]:
        return [ask(claimed.conversation_id, user=owner) for claimed in taken]

    together([ends, asks])

    check_tables(Tables())
    assert len(take(200)) == 200


def until_held(ending: Callable[[], Ended]) -> Ended:
    """Try again, as the journal's writer does, while somebody has the rows locked."""
    outcome: list[Ended] = []

    def tried() -> bool:
        outcome[:] = [ending()]
        return outcome[0].standing is not Standing.LOCKED

    wait_until(tried, "the run's rows are free")
    return outcome[0]


def test_a_hammer_of_all_verbs_never_deadlocks() -> None:
    """Stop, end, reap, enqueue and claim beside each other on the same ten conversations."""
    owner = worlds.owner()
    places = [ask(user=owner).conversation_id for _ in range(10)]
    before = deadlocks()

    def asks() -> None:
        for _ in range(15):
            enqueue_runs(
                {"conversation": place, "content": "hi", "agent": AGENT} for place in places
            )
            for place in places:
                stop_conversation(place)

    def works() -> None:
        for _ in range(60):
            for claimed in claim([AGENT], new_tokens(3), "host:3:racer", lease=LEASE):
                move(claimed.run_id, claim_expires_at="now() - interval '1 hour'")
                say(claimed, "a")
                end(claimed, RunStatus.COMPLETED, texts=("a",))

    def sweeps() -> None:
        for _ in range(30):
            Reaper(grace=GRACE, retention=RETENTION).sweep()

    together([asks, asks, works, works, sweeps, sweeps])

    assert deadlocks() == before
    Reaper(grace=GRACE, retention=RETENTION).sweep(whole=True)
    check_tables(Tables())


def deadlocks() -> int:
    connection.close()  # a backend that ends reports what it counted
    with connection.cursor() as cursor:
        cursor.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        return int(cursor.fetchone()[0])


def test_two_claims_of_one_conversation_by_foreign_hands_meet_the_constraint() -> None:
    """A mark beside a running turn, which only a write past the verbs makes, is passed over."""
    world = worlds.busy()
    move(world.runs[1].pk, ready_at="now()")
    other = ask()

    try:
        taken = take(2)
    except IntegrityError:
        pytest.fail("a wrong mark fails the claims of other conversations")

    assert [claimed.run_id for claimed in taken] == [other.pk]


def test_a_reaper_does_not_wait_for_a_locked_orphan(plain: Callable[[], Any]) -> None:
    world = worlds.busy()
    for table, row_id in (
        ("agentruns_agentrun", world.running.run_id),
        ("agentruns_conversation", world.conversation_id),
    ):
        with locked(plain(), table, row_id):
            assert not reap(world.running.fence, world.conversation_id, grace=GRACE)

    assert reap(world.running.fence, world.conversation_id, grace=GRACE)
