"""What the races share: actors on a database of committed rows, and a count of their schedules."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from agentruns import turns
from agentruns.reaper import NO_ID

from . import world as worlds
from .driver import Schedule, Stage, schedules
from .invariants import Tables, check_outcomes, check_tables
from .world import World

SPLIT, WHOLE = "split", "whole"
counted = pytest.StashKey[dict[str, int]]()

Play = Callable[..., list[Schedule]]


def pytest_configure(config: pytest.Config) -> None:
    config.stash[counted] = {"schedules": 0, "pairs": 0, "blocked": 0}


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    count = config.stash[counted]
    if count["schedules"]:
        terminalreporter.write_line(
            f"races: {count['schedules']} schedules of {count['pairs']} casts, each with all"
            f" invariants checked; a statement waited for another {count['blocked']} times"
        )


@pytest.fixture
def stages(transactional_db: None) -> Iterator[dict[str, Stage]]:
    with Stage(3, split=True) as split, Stage(3, split=False) as whole:
        yield {SPLIT: split, WHOLE: whole}


@pytest.fixture
def play(stages: dict[str, Stage], request: pytest.FixtureRequest) -> Play:
    """Play every schedule of some verbs from one state, and check all invariants after each."""

    def every_schedule(
        state: Callable[[], World],
        verbs: Sequence[Callable[[World], Any]],
        *,
        mode: str = SPLIT,
        check: Callable[[Schedule, World, Tables], None] | None = None,
    ) -> list[Schedule]:
        worlds.clear()
        world = state()
        world.known = {run.pk for run in world.runs}
        snapshot = worlds.Snapshot()

        def build() -> list[tuple[str, Callable[[], Any]]]:
            snapshot.restore()
            return [
                (f"{verb.__name__} {number}", functools.partial(verb, world))
                for number, verb in enumerate(verbs, start=1)
            ]

        played = []
        for schedule in schedules(stages[mode], build):
            played.append(schedule)
            try:
                if world.stands_still:
                    turns.heal(NO_ID, limit=100)
                tables = Tables()
                check_tables(tables)
                check_outcomes(schedule, world, tables)
                if check is not None:
                    check(schedule, world, tables)
            except AssertionError as error:
                error.add_note(str(schedule))
                raise
        snapshot.drop()
        count = request.config.stash[counted]
        count["schedules"] += len(played)
        count["pairs"] += 1
        count["blocked"] += sum(schedule.blocked for schedule in played)
        return played

    return every_schedule
