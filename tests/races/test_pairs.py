"""Every pair of verbs that touch the same rows, in every order of their statements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agentruns.journal import Standing

from .conftest import SPLIT, WHOLE, Play
from .world import (
    SCRIPTS,
    STATES,
    SWEEPS,
    TRIPLES,
    World,
    batches,
    batches_backwards,
    beats,
    claims,
    completes,
    ends_overrun,
    enqueues,
    heals,
    overrun,
    reaps,
    repeatable,
    side_by_side,
    stops_all,
    stops_first,
    stops_last,
)

PAIRS = [
    pytest.param(state, verb, verbs[place:], id=f"{name}-{verb.__name__}")
    for name, (state, verbs) in STATES.items()
    for place, verb in enumerate(verbs)
]
REPEATABLE_PAIRS = (
    *(beats, completes, reaps, claims, enqueues),
    *(stops_first, stops_last, stops_all, heals),
)


@pytest.mark.parametrize(("state", "verb", "others"), PAIRS)
def test_two_verbs_keep_every_guarantee_in_every_order(
    play: Play,
    state: Callable[[], World],
    verb: Callable[[World], Any],
    others: tuple[Callable[[World], Any], ...],
) -> None:
    for other in others:
        assert play(state, (verb, other), mode=SPLIT)
        # Sent in one round trip, as they are without server-side binding.
        if verb in SCRIPTS or other in SCRIPTS:
            assert play(state, (verb, other), mode=WHOLE)


@pytest.mark.parametrize("other", REPEATABLE_PAIRS, ids=lambda verb: verb.__name__)
def test_an_orphan_that_is_repeated_keeps_every_guarantee_in_every_order(
    play: Play, other: Callable[[World], Any]
) -> None:
    assert play(repeatable, (reaps, other))


@pytest.mark.parametrize(("state", "sweep", "others"), SWEEPS.values(), ids=SWEEPS.keys())
def test_a_sweep_of_limits_keeps_every_guarantee_in_every_order(
    play: Play,
    state: Callable[[], World],
    sweep: Callable[[World], Any],
    others: tuple[Callable[[World], Any], ...],
) -> None:
    for other in others:
        assert play(state, (sweep, other))


@pytest.mark.parametrize(("state", "verbs"), TRIPLES.values(), ids=TRIPLES.keys())
def test_three_verbs_keep_every_guarantee_in_every_order(
    play: Play, state: Callable[[], World], verbs: tuple[Callable[[World], Any], ...]
) -> None:
    assert play(state, verbs, mode=WHOLE)


def test_two_batches_in_opposite_orders_do_not_deadlock(play: Play) -> None:
    assert play(side_by_side, (batches, batches_backwards))


def test_a_sweep_of_limits_and_the_workers_own_ending_end_a_run_once(play: Play) -> None:
    played = play(overrun, (ends_overrun, completes))

    found = {
        (schedule.outcomes["ends_overrun 1"], schedule.outcomes["completes 2"].standing)
        for schedule in played
    }
    assert {(True, Standing.SUPERSEDED), (False, Standing.HELD)} <= found
    # They met: the one had the rows while the other asked for them.
    assert (True, Standing.LOCKED) in found or (False, Standing.LOCKED) in found
