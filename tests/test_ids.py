"""Time-ordered ids."""

from __future__ import annotations

import threading
import time

from agentruns.ids import uuid7


def test_ids_of_one_process_sort_as_they_were_made() -> None:
    ids = [uuid7() for _ in range(10_000)]

    assert ids == sorted(ids)
    assert len(set(ids)) == len(ids)


def test_threads_never_make_the_same_id() -> None:
    made: list[object] = []

    def make() -> None:
        made.extend(uuid7() for _ in range(2_000))

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(set(made)) == 8_000


def test_an_id_is_of_version_7_and_begins_with_the_time() -> None:
    before = time.time_ns() // 1_000_000

    made = uuid7()

    assert made.version == 7
    assert made.variant == "specified in RFC 4122"
    assert abs((made.int >> 80) - before) < 60_000
