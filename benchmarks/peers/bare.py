"""The least that a signal can cost: one insert and one NOTIFY, and a listener.

`python -m benchmarks.peers.bare` listens, and notes for each hint its payload and when it came.
"""

from __future__ import annotations

import os
import time
from typing import Any

import psycopg

CHANNEL = "bare"


def setup(connection: psycopg.Connection[Any]) -> None:
    connection.execute("CREATE TABLE bare (number bigint)")


def send(connection: psycopg.Connection[Any], number: int) -> None:
    with connection.transaction():
        connection.execute("INSERT INTO bare VALUES (%s)", [number], prepare=True)
        connection.execute("SELECT pg_notify(%s, %s)", [CHANNEL, str(number)], prepare=True)


def listen() -> None:
    samples = open(os.environ["BENCH_SAMPLES"], "w", buffering=1)
    with psycopg.connect(os.environ["BENCH_BARE_URL"], autocommit=True) as connection:
        connection.execute(f"LISTEN {CHANNEL}")
        for notification in connection.notifies():
            samples.write(f"{notification.payload} {time.monotonic_ns()}\n")


if __name__ == "__main__":
    listen()
