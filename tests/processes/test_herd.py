"""Many claimers hear one hint."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from agentruns.claim import Claimed
from agentruns.claimer import Claimer
from tests.support import until

from .history import enqueue

CLAIMERS = 20


class Worker:
    """A claimer with slots, and what it took."""

    def __init__(self) -> None:
        self.taken: list[Claimed] = []
        self.claimer = Claimer(
            ["count"],
            "herd",
            free_slots=lambda: 5 - len(self.taken),
            on_claimed=lambda claimed, _: self.taken.extend(claimed),
            lease=timedelta(minutes=1),
            poll=3600,
            limit=10,
        )


@pytest.fixture
def herd(database: str) -> Iterator[list[Worker]]:
    herd = [Worker() for _ in range(CLAIMERS)]
    for worker in herd:
        worker.claimer.start()
    until(lambda: all(worker.claimer.claims for worker in herd), "the first look of all")
    yield herd
    for worker in herd:
        worker.claimer.stop()
    until(lambda: all(worker.claimer.is_done for worker in herd), "all to end")


def wake(herd: list[Worker], payload: str) -> None:
    """Have all of them hear the hint at once."""
    together = threading.Barrier(len(herd))

    def hear(verb: Callable[[str], None]) -> None:
        together.wait()
        verb(payload)

    threads = [threading.Thread(target=hear, args=[worker.claimer.wake]) for worker in herd]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_a_hint_makes_each_claimer_look_once_and_one_take_the_run(herd: list[Worker]) -> None:
    run = enqueue(None, "count")
    before = sum(worker.claimer.claims for worker in herd)
    wake(herd, run.pk.hex)
    until(
        lambda: sum(worker.claimer.claims for worker in herd) >= before + CLAIMERS,
        "an answer to every look",
    )

    assert [claimed.run_id for worker in herd for claimed in worker.taken] == [run.pk]
    assert sum(worker.claimer.claims for worker in herd) == before + CLAIMERS


def test_a_burst_of_hints_costs_fewer_claims_than_hints(herd: list[Worker]) -> None:
    runs = [enqueue(None, "count") for _ in range(40)]
    before = sum(worker.claimer.claims for worker in herd)
    for run in runs:
        wake(herd, run.pk.hex)
    until(lambda: sum(len(worker.taken) for worker in herd) == len(runs), "all runs")

    taken = [claimed.run_id for worker in herd for claimed in worker.taken]
    assert sorted(taken) == sorted(run.pk for run in runs)
    assert sum(worker.claimer.claims for worker in herd) - before < CLAIMERS * len(runs)


def test_a_claimer_that_took_another_run_than_the_hinted_one_looks_again(
    herd: list[Worker],
) -> None:
    unheard, heard = enqueue(None, "count"), enqueue(None, "count")
    [worker] = herd[:1]
    worker.claimer.wake(heard.pk.hex)
    until(lambda: len(worker.taken) == 2, "both runs, although the hint named one")

    assert [claimed.run_id for claimed in worker.taken] == [unheard.pk, heard.pk]


def test_a_claimer_that_took_all_that_hints_named_looks_no_further(herd: list[Worker]) -> None:
    [worker] = herd[:1]
    before = worker.claimer.claims
    runs = [enqueue(None, "count") for _ in range(2)]
    worker.claimer.wake(",".join(run.pk.hex for run in runs))
    until(lambda: len(worker.taken) == 2, "both runs")
    another = enqueue(None, "count")
    worker.claimer.wake(another.pk.hex)
    until(lambda: len(worker.taken) == 3, "the next one")

    assert worker.claimer.claims == before + 2
