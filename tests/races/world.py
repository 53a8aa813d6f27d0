"""Conversations in the states that matter, made by the verbs, and the verbs as actors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.contrib.auth import get_user_model
from django.db import connection

from agentruns import agents, turns
from agentruns.answer import answer_run
from agentruns.claim import Claimed, claim, new_tokens
from agentruns.enqueue import enqueue_run, enqueue_runs
from agentruns.finalize import Ended, Ending, end_runs, failure
from agentruns.journal import Row, Standing, append
from agentruns.lease import Beat, heartbeat
from agentruns.limits import Overrun, end_overdue, end_overrun
from agentruns.models import AgentRun, Conversation, RunStatus
from agentruns.questions import Pause, Paused, checked, pause
from agentruns.reaper import NO_ID, reap, trim
from agentruns.retry import retry_run
from agentruns.stop import stop_conversation, stop_run
from agentruns.suspended import expire_questions

LEASE = timedelta(seconds=30)
GRACE = timedelta(seconds=30)
RETENTION = timedelta(hours=1)
AGENT = "racer"
REPEATABLE = "repeatable-racer"
TABLES = ("question", "runevent", "agentrun", "message", "conversation")


@agents.agent(AGENT)
async def racer(run: Any) -> None:
    """Never run: the tests write what a worker would."""


@agents.agent(REPEATABLE, retry=True)
async def repeatable_racer(run: Any) -> None:
    """Never run either; its orphans are repeated."""


@dataclass(slots=True)
class World:
    """One conversation, its turns in order, and the claim on the turn that runs."""

    conversation_id: UUID
    runs: list[AgentRun]
    """Its turns, in order; the first has what the world is named after."""
    claimed: Claimed | None = None
    draft: UUID | None = None
    stands_still: bool = False
    """A promotion was lost: only a sweep is sure to start it again."""
    known: set[UUID] = field(default_factory=set)
    """Runs that were there before the actors began."""

    @property
    def user(self) -> int:
        return int(self.runs[0].user_id)

    @property
    def running(self) -> Claimed:
        assert self.claimed is not None, "no turn of this world runs"
        return self.claimed


def owner() -> int:
    """The id of the user that all conversations of the races belong to."""
    user, _ = get_user_model().objects.get_or_create(username="racer")
    return int(user.pk)


def clear() -> None:
    """Take away all runs, messages and conversations."""
    with connection.cursor() as cursor:
        cursor.execute(";".join(f"DELETE FROM agentruns_{table}" for table in TABLES))


class Snapshot:
    """All rows as they stand, to be put back before each schedule: building them by the verbs again
    would take longer than the schedule.
    """

    def __init__(self) -> None:
        self._run("CREATE TEMP TABLE races_{0} AS TABLE agentruns_{0}", TABLES)

    def restore(self) -> None:
        clear()
        self._run("INSERT INTO agentruns_{0} SELECT * FROM races_{0}", TABLES[::-1])

    def drop(self) -> None:
        self._run("DROP TABLE races_{0}", TABLES)

    def _run(self, text: str, tables: tuple[str, ...]) -> None:
        with connection.cursor() as cursor:
            cursor.execute(";".join(text.format(table) for table in tables))


def move(run_id: UUID, **columns: str) -> None:
    """Set columns of a run's row to SQL expressions, past the verbs: rows move, clocks don't."""
    assignments = ", ".join(f"{name} = {value}" for name, value in columns.items())
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE agentruns_agentrun SET {assignments} WHERE id = %s", [run_id])


def ask(conversation_id: UUID | None = None, agent: str = AGENT, user: int = 0) -> AgentRun:
    """Enqueue a turn; a given id saves the look for the conversation's user."""
    place = None if conversation_id is None else Conversation(pk=conversation_id)
    return enqueue_run(conversation=place, user=user or owner(), content="hi", agent=agent)


def take(count: int = 1, agent: str = AGENT) -> list[Claimed]:
    return claim([agent], new_tokens(count), "host:1:racer", lease=LEASE)


def delta(run_id: UUID, seq: int, text: str) -> Row:
    return Row(run_id, seq, "content_delta", f'{{"stream":"text","delta":"{text}"}}')


def say(claimed: Claimed, *texts: str, seq: int = 4) -> Standing:
    rows = [delta(claimed.run_id, number, text) for number, text in enumerate(texts, start=seq)]
    return append([(claimed.fence, rows)])[claimed.run_id]


def end(
    claimed: Claimed,
    status: RunStatus = RunStatus.COMPLETED,
    *,
    texts: tuple[str, ...] = ("a", "b", "c"),
) -> Ended:
    """End the run as its worker would, with every row again that may not be stored."""
    rows = [delta(claimed.run_id, seq, text) for seq, text in enumerate(texts, start=4)]
    error = failure("agent_error") if status is RunStatus.FAILED else None
    ending = Ending(
        claimed.fence,
        claimed.conversation_id,
        status,
        seq=4 + len(rows),
        rows=rows,
        content="".join(texts),
        error=error,
    )
    return end_runs([ending])[claimed.run_id]


# The states


def waiting() -> World:
    """Two turns wait; nothing runs."""
    first = ask()
    return World(first.conversation_id, [first, ask(first.conversation_id)])


def busy(agent: str = AGENT) -> World:
    """Turn 1 runs, has said something and has lost its lease and the grace; turn 2 waits."""
    first = ask(agent=agent)
    (claimed,) = take(agent=agent)
    say(claimed, "a", "b")
    second = ask(first.conversation_id, agent=agent)
    move(first.pk, claim_expires_at="now() - interval '1 hour'")
    return World(first.conversation_id, [first, second], claimed)


def repeatable() -> World:
    """As `busy`, of an agent that may be repeated."""
    return busy(REPEATABLE)


def last() -> World:
    """Turn 1 runs, with its lease lapsed, and nothing waits."""
    first = ask()
    (claimed,) = take()
    say(claimed, "a", "b")
    move(first.pk, claim_expires_at="now() - interval '1 hour'")
    return World(first.conversation_id, [first], claimed)


def failed() -> World:
    """Turn 1 failed long ago, and a stop handed a draft back; nothing waits."""
    world = last()
    second = ask(world.conversation_id)
    stop_run(second)
    end(world.running, RunStatus.FAILED)
    move(world.runs[0].pk, finished_at="now() - interval '1 day'")
    return World(world.conversation_id, world.runs, None, draft=second.user_message_id)


def retrying() -> World:
    """Turn 1 failed and its retry waits; turn 2 waits behind it."""
    world = failed()
    again = retry_run(world.runs[0])
    second = ask(world.conversation_id)
    return World(world.conversation_id, [again, second])


def unmarked() -> World:
    """Two turns wait and neither is marked: a promotion was lost."""
    world = waiting()
    move(world.runs[0].pk, ready_at="NULL")
    world.stands_still = True
    return world


def overrun() -> World:
    """Turn 1 runs, beats and has run for longer than it may; turn 2 waits."""
    world = busy()
    move(
        world.running.run_id,
        claim_expires_at="now() + interval '30 s'",
        started_at="now() - interval '1 hour'",
    )
    return world


def overdue() -> World:
    """Two turns wait, the first for longer than it may."""
    world = waiting()
    first = world.runs[0].pk
    move(first, limits="""'{"queue_seconds": 60}'""", ready_at="now() - interval '1 hour'")
    return world


def asking() -> World:
    """Turn 1 waits for an answer; turn 2 waits for its end."""
    world = busy()
    assert pauses(world).standing is Standing.HELD
    return World(world.conversation_id, world.runs)


def late() -> World:
    """As `asking`, and the question has just expired."""
    world = asking()
    with connection.cursor() as cursor:
        cursor.execute("UPDATE agentruns_question SET expires_at = now() - interval '1 second'")
    return world


def answered() -> World:
    """Turn 1 was answered, and stands in the queue again; turn 2 waits for its end."""
    world = asking()
    answers(world)
    return world


def side_by_side() -> World:
    """A turn waits in each of two conversations."""
    first = ask()
    return World(first.conversation_id, [first, ask()])


# The verbs, each of a world


def beats(world: World) -> Beat:
    return heartbeat([world.running.fence], lease=LEASE)[world.running.run_id]


def appends(world: World) -> Standing:
    return say(world.running, "c", seq=6)


def completes(world: World) -> Ended:
    return end(world.running)


def fails(world: World) -> Ended:
    return end(world.running, RunStatus.FAILED)


def pauses(world: World) -> Paused:
    """Have turn 1 ask, as its worker would, with the rows again that may not be stored yet."""
    fence = world.running.fence
    rows = [delta(fence.run_id, seq, text) for seq, text in ((4, "a"), (5, "b"), (6, "c"))]
    question = checked({"go": "on?"}, "1", timedelta(hours=1))
    return pause([Pause(fence, question, seq=7, rows=rows)])[fence.run_id]


def answers(world: World) -> AgentRun:
    return answer_run(world.runs[0], {"go": "on"})


def expires(world: World) -> int:
    del world
    return expire_questions()


def reaps(world: World) -> bool:
    return reap(world.running.fence, world.conversation_id, grace=GRACE)


def claims(world: World) -> list[Claimed]:
    del world  # a claim takes whatever may start
    names = [AGENT, REPEATABLE]
    return claim(names, new_tokens(2), "host:2:racer", lease=LEASE)


def enqueues(world: World) -> AgentRun:
    return ask(world.conversation_id, user=world.user)


def enqueues_draft(world: World) -> AgentRun:
    place = Conversation(pk=world.conversation_id)
    return enqueue_run(
        conversation=place, user=world.user, content="again", agent=AGENT, draft=world.draft
    )


def enqueues_keyed(world: World) -> AgentRun:
    place = Conversation(pk=world.conversation_id)
    return enqueue_run(
        conversation=place, user=world.user, content="once", agent=AGENT, idempotency_key="key"
    )


def opens_keyed(world: World) -> AgentRun:
    return enqueue_run(
        conversation=None, user=world.user, content="new", agent=AGENT, idempotency_key="new"
    )


def stops_first(world: World) -> AgentRun:
    return stop_run(world.runs[0])


def stops_last(world: World) -> AgentRun:
    return stop_run(world.runs[-1])


def stops_all(world: World) -> Any:
    return stop_conversation(Conversation(pk=world.conversation_id))


def batches(world: World) -> list[AgentRun]:
    """Enqueue a turn in the conversation of each run."""
    places = [Conversation(pk=run.conversation_id) for run in world.runs]
    common = {"content": "hi", "agent": AGENT, "user": world.user}
    return enqueue_runs(common | {"conversation": place} for place in places)


def batches_backwards(world: World) -> list[AgentRun]:
    return batches(World(world.conversation_id, world.runs[::-1]))


def retries(world: World) -> AgentRun:
    return retry_run(world.runs[0])


def heals(world: World) -> int:
    del world
    return turns.heal(NO_ID, limit=100)[0]


def ends_overrun(world: World) -> bool:
    found = Overrun(world.running.fence, world.conversation_id, "timeout", None, None, None)
    return end_overrun(found, "timeout", grace=GRACE)


def fails_overdue(world: World) -> int:
    del world
    return end_overdue()


def trims(world: World) -> int:
    del world
    return trim(RETENTION)


Build = Callable[[], World]
Act = Callable[[World], Any]

STATES: dict[str, tuple[Build, tuple[Act, ...]]] = {
    "busy": (
        busy,
        (
            *(beats, appends, completes, reaps, claims),
            *(enqueues, stops_first, stops_last, stops_all, heals),
        ),
    ),
    "busy and about to ask": (
        busy,
        (pauses, beats, appends, reaps, claims, enqueues, stops_first, stops_all, heals),
    ),
    "asking": (asking, (answers, claims, enqueues, stops_first, stops_last, stops_all, heals)),
    "late": (late, (expires, answers, claims, enqueues, stops_all, heals)),
    "answered": (answered, (claims, answers, enqueues, stops_first, stops_all, heals)),
    "last": (last, (fails, reaps, claims, enqueues, stops_all, heals)),
    "waiting": (waiting, (claims, enqueues, stops_first, stops_last, stops_all, heals)),
    "failed": (
        failed,
        (
            *(claims, enqueues, enqueues_draft, enqueues_keyed, opens_keyed),
            *(retries, stops_all, heals, trims),
        ),
    ),
    "retrying": (retrying, (claims, enqueues, stops_first, stops_all, heals)),
    "unmarked": (unmarked, (claims, enqueues, stops_first, stops_all, heals)),
}
"""Each state, and the verbs that touch its rows: each is paired with itself and all after it."""

SWEEPS: dict[str, tuple[Build, Act, tuple[Act, ...]]] = {
    "overrun": (
        overrun,
        ends_overrun,
        (ends_overrun, beats, appends, reaps, claims, enqueues, stops_all, heals),
    ),
    "overdue": (
        overdue,
        fails_overdue,
        (fails_overdue, claims, enqueues, stops_first, stops_all, heals),
    ),
}
"""What a sweep of limits ends, and the verbs that touch the same rows."""

TRIPLES: dict[str, tuple[Build, tuple[Act, ...]]] = {
    "a stop at the end of a turn that enqueue follows": (busy, (stops_all, completes, enqueues)),
    "a reaper, a late beat and a late flush": (busy, (reaps, beats, appends)),
    "a reaper, the worker's own ending and a beat": (busy, (reaps, completes, beats)),
    "a sweep of limits, the worker's own ending and a flush": (
        overrun,
        (ends_overrun, completes, appends),
    ),
    "two reapers and an enqueue": (last, (reaps, reaps, enqueues)),
    "an ending, an enqueue and a claim": (last, (completes, enqueues, claims)),
    "an ending, a sweep and a claim": (busy, (completes, heals, claims)),
    "two claims and a stop": (waiting, (claims, claims, stops_all)),
    "a claim, a stop and an enqueue": (waiting, (claims, stops_all, enqueues)),
    "a repeat, a claim and a stop": (repeatable, (reaps, claims, stops_all)),
    "two retries and a claim": (failed, (retries, retries, claims)),
    "an answer, a claim and a stop": (asking, (answers, claims, stops_all)),
    "an answer, a claim and an enqueue": (asking, (answers, claims, enqueues)),
}

SCRIPTS = (
    beats,
    appends,
    pauses,
    completes,
    fails,
    claims,
    enqueues,
    enqueues_draft,
    enqueues_keyed,
)
"""Verbs that are one script, sent in one round trip."""
