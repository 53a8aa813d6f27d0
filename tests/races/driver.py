"""Runs verbs side by side, one statement at a time, through every order of their statements.

An actor is a thread with a connection of its own. It halts before each statement and before each
COMMIT until the stage lets it go on. A statement that waits for another actor's lock is recognised
by `pg_blocking_pids`; its actor goes on by itself when the lock is released. An order of statements
is a list of choices, and all of them are visited depth first, each on freshly built rows.

Orders that differ only in where a plain read stands among other actors' uncommitted statements are
the same order: a read neither waits for these nor sees them. One of each such class is played
(sleep sets, Godefroid 1996).
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import psycopg
from django.db import DatabaseError, connections

ALIAS = "default"
PATIENCE = 20.0
"""Seconds after which a schedule that does not move has failed."""
LOOK_AGAIN = 0.0005
"""Seconds between two looks at a statement that has not come back."""

# They touch no row that another actor reads: NOTIFY acts at COMMIT, savepoints are a transaction's
# own. A halt before them would only multiply equal schedules.
SILENT = ("SAVEPOINT", "RELEASE SAVEPOINT", "ROLLBACK TO SAVEPOINT", "SELECT pg_notify")

WRITES = (
    "EXECUTE",
    "FOR NO KEY UPDATE",
    "FOR UPDATE",
    "INSERT ",
    "UPDATE ",
    "DELETE ",
    "set_config",
)

Verb = Callable[[], Any]


class Abandoned(DatabaseError):
    """The schedule is one that was played already: go no further."""


class Kind(Enum):
    """What a statement can mean to the other actors."""

    READ = "read"
    HELD = "held"
    """Writes or locks, inside a transaction that goes on."""
    VISIBLE = "visible"
    """Commits."""

    def commutes(self, other: Kind) -> bool:
        """Whether the two, next to each other, do the same in either order."""
        return Kind.READ in (self, other) and Kind.VISIBLE not in (self, other)


@dataclass(slots=True)
class Point:
    """A moment at which more than one actor can go on."""

    able: dict[int, Kind]
    asleep: frozenset[int]
    """Actors whose next statement was tried before in a place that makes no difference."""
    tried: list[int] = field(default_factory=list)
    """Actors that were taken here; the last one is the current choice."""

    @property
    def untried(self) -> list[int]:
        return [number for number in self.able if number not in self.asleep | set(self.tried)]


@dataclass(slots=True)
class Schedule:
    """One order of the actors' statements, and what came of it."""

    redundant: bool = False
    """Equal to another one that is played."""
    log: list[str] = field(default_factory=list)
    """What happened, in order, for the message of a failure."""
    finished: list[str] = field(default_factory=list)
    """Names of the actors in the order in which they were done."""
    blocked: int = 0
    """How many times a statement waited for another actor."""
    outcomes: dict[str, Any] = field(default_factory=dict)
    """What each verb returned or raised."""

    def __str__(self) -> str:
        outcomes = "\n".join(f"  {name}: {value!r}" for name, value in self.outcomes.items())
        return "schedule:\n  " + "\n  ".join(self.log) + "\noutcomes:\n" + outcomes

    def before(self, first: str, second: str) -> bool:
        """Whether the first actor was done before the second was."""
        return self.finished.index(first) < self.finished.index(second)


class Actor(threading.Thread):
    """A thread with its own connection that runs one verb at a time, halting at each statement."""

    def __init__(self, number: int, changed: threading.Condition, *, split: bool) -> None:
        super().__init__(name=f"actor-{number}", daemon=True)
        self.number = number
        self.split = split
        self.pid = 0
        self.label = ""
        self.halted_at: str | None = None
        self.kind = Kind.READ
        self.outcome: Any = None
        self.active = False
        self.blocked = False
        self._changed = changed
        self._verb: Verb | None = None
        self._go = False
        self._abandoned = False
        self._leaving = False

    @property
    def still(self) -> bool:
        """Nothing of it runs: it is done, or halted before a statement."""
        return not self.active or self.halted_at is not None

    def begin(self, label: str, verb: Verb) -> None:
        with self._changed:
            self.label, self.outcome, self.blocked = label, None, False
            self._verb, self.active, self._abandoned = verb, True, False
            self._changed.notify_all()

    def go(self) -> None:
        """Let it run to its next halt."""
        with self._changed:
            self._go, self.halted_at = True, None
            self._changed.notify_all()

    def abandon(self) -> None:
        """Let it go no further than its next halt."""
        self._abandoned = True

    def leave(self) -> None:
        with self._changed:
            self._leaving = self._go = True
            self._changed.notify_all()
        self.join(PATIENCE)

    def run(self) -> None:
        wrapper = connections[ALIAS]
        options = {**wrapper.settings_dict["OPTIONS"], "server_side_binding": self.split}
        wrapper.settings_dict = {**wrapper.settings_dict, "OPTIONS": options}
        try:
            with wrapper.cursor() as cursor:
                cursor.execute("SET deadlock_timeout = '20ms'")
                cursor.execute("SELECT pg_backend_pid()")
                self.pid = cursor.fetchone()[0]
            commit = wrapper.commit
            wrapper.execute_wrappers.append(self._halt_before)
            wrapper.commit = lambda: (self._halt("COMMIT", Kind.VISIBLE), commit())  # type: ignore[method-assign]
            while self._perform():
                pass
        finally:
            wrapper.close()

    def _perform(self) -> bool:
        with self._changed:
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._verb is not None or self._leaving)
            verb, self._verb = self._verb, None
        if verb is None:
            return False
        try:
            outcome = verb()
        except Exception as error:
            outcome = error
        with self._changed:
            self.outcome, self.active, self._go = outcome, False, False
            self._changed.notify_all()
        return True

    def _halt_before(self, execute: Any, sql: Any, params: Any, many: Any, context: Any) -> Any:
        text = " ".join(str(sql).split())
        if not text.startswith(SILENT):
            kind = Kind.READ
            if any(word in text for word in WRITES):
                inside = context["connection"].in_atomic_block
                kind = Kind.HELD if inside else Kind.VISIBLE
            self._halt(text[:90], kind)
        return execute(sql, params, many, context)

    def _halt(self, what: str, kind: Kind) -> None:
        with self._changed:
            self.halted_at, self.kind = what, kind
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._go)
            self._go = False
        if self._abandoned:
            raise Abandoned


class Stage:
    """The actors, and an onlooker's connection that sees who waits for whom."""

    def __init__(self, count: int, *, split: bool) -> None:
        """With `split`, the statements of a script are sent one by one, as with
        `server_side_binding`.
        """
        self.changed = threading.Condition()
        self.actors = [Actor(number, self.changed, split=split) for number in range(count)]

    def __enter__(self) -> Stage:
        params = connections[ALIAS].get_connection_params()
        wanted = {
            key: params[key]
            for key in ("host", "port", "user", "password", "dbname")
            if params.get(key)
        }
        self._onlooker = psycopg.connect(**wanted, autocommit=True)
        for actor in self.actors:
            actor.start()
        with self.changed:
            ready = self.changed.wait_for(lambda: all(a.pid for a in self.actors), PATIENCE)
        assert ready, "the actors did not connect"
        return self

    def __exit__(self, *_: object) -> None:
        with closing(self._onlooker):
            for actor in self.actors:
                actor.leave()

    def play(self, verbs: Sequence[tuple[str, Verb]], points: list[Point]) -> Schedule:
        """Run the verbs in the order that `points` chooses, then in the first order possible; the
        points met on the way are added.
        """
        schedule = Schedule()
        cast = self.actors[: len(verbs)]
        for actor, (label, verb) in zip(cast, verbs, strict=True):
            actor.begin(label, verb)
        self._settle(cast, schedule)
        asleep: frozenset[int] = frozenset()
        for place in itertools.count():
            able = {actor.number: actor.kind for actor in cast if actor.halted_at is not None}
            if not able:
                break
            if place == len(points):
                point = Point(able, asleep)
                if not point.untried:
                    schedule.redundant = True
                    for actor in cast:
                        actor.abandon()
                point.tried.append((point.untried or list(able))[0])
                points.append(point)
            point = points[place]
            assert point.able == able, f"the schedule could not be repeated\n{schedule}"
            chosen = point.tried[-1]
            asleep = frozenset(
                number
                for number in point.asleep.union(point.tried[:-1])
                if not schedule.redundant and able[number].commutes(able[chosen])
            )
            actor = cast[chosen]
            schedule.log.append(f"{actor.label}: {actor.halted_at}")
            actor.go()
            # The one that was let go stands first: what it released can only end after it.
            self._settle(sorted(cast, key=lambda other: other is not actor), schedule)
        schedule.outcomes = {actor.label: actor.outcome for actor in cast}
        return schedule

    def _settle(self, cast: Sequence[Actor], schedule: Schedule) -> None:
        """Wait until each actor is done, halted, or blocked by an actor that is still."""
        limit = time.monotonic() + PATIENCE
        while True:
            with self.changed:
                self.changed.wait_for(lambda: all(actor.still for actor in cast), LOOK_AGAIN)
                busy = [actor for actor in cast if not actor.still]
            self._note(cast, busy, schedule)
            halted = any(actor.halted_at is not None for actor in cast)
            if not busy or (self._all_blocked(busy, schedule) and halted):
                return
            if time.monotonic() > limit:
                raise AssertionError(f"nothing moved for {PATIENCE:g} s\n{schedule}")

    def _note(self, cast: Sequence[Actor], busy: Sequence[Actor], schedule: Schedule) -> None:
        for actor in cast:
            if actor in busy and not actor.blocked:
                return  # what the others did, they did after its statement
            if actor.blocked and actor not in busy:
                actor.blocked = False
                schedule.log.append(f"{actor.label}: goes on")
            if not actor.active and actor.label not in schedule.finished:
                schedule.finished.append(actor.label)
                schedule.log.append(f"{actor.label}: done")

    def _all_blocked(self, busy: Sequence[Actor], schedule: Schedule) -> bool:
        """Whether PostgreSQL says of each that it waits for a lock of somebody else."""
        for actor in busy:
            answer = self._onlooker.execute("SELECT pg_blocking_pids(%s)", [actor.pid]).fetchone()
            if not answer or not answer[0]:
                return False
        for actor in busy:
            if not actor.blocked:
                actor.blocked = True
                schedule.blocked += 1
                schedule.log.append(f"{actor.label}: blocked")
        return True


def schedules(
    stage: Stage, build: Callable[[], Sequence[tuple[str, Verb]]], *, most: int = 5000
) -> Iterator[Schedule]:
    """Play every schedule of the verbs that `build` gives, each on what it built anew."""
    points: list[Point] = []
    for _ in range(most):
        schedule = stage.play(build(), points)
        if not schedule.redundant:
            yield schedule
        while points and not points[-1].untried:
            points.pop()
        if not points:
            return
        points[-1].tried.append(points[-1].untried[0])
    raise AssertionError(f"more than {most} schedules")


def wait_until(condition: Callable[[], bool], what: str, *, timeout: float = PATIENCE) -> None:
    """Look until it is so; fail after `timeout` seconds."""
    limit = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > limit:
            raise AssertionError(f"{what}: not within {timeout:g} s")
        with suppress(InterruptedError):
            time.sleep(LOOK_AGAIN)
