"""Enqueue in a loop, in its own transactions: `python -m benchmarks.enqueue new|known COUNT`.

`new` opens a conversation with each turn; `known` adds a turn to a conversation that is idle. With
`BENCH_PLANNED`, each statement is planned anew, as behind a pooler.
"""

from __future__ import annotations

import json
import os
import sys
import time

import django


def main(kind: str, count: int) -> None:
    django.setup()
    from agentruns import enqueue_run, plans
    from agentruns.models import Conversation

    if os.environ.get("BENCH_PLANNED"):
        plans.PID = "0"
    places: list[Conversation | None] = [None] * (count + 50)
    if kind == "known":
        conversations = [Conversation(user_id=1) for _ in places]
        places = list(Conversation.objects.bulk_create(conversations))
    for place in places[:50]:
        enqueue_run(conversation=place, user=1, content="Hello")
    began, cpu = time.monotonic(), time.process_time()
    for place in places[50:]:
        enqueue_run(conversation=place, user=1, content="Hello")
    seconds, cpu = time.monotonic() - began, time.process_time() - cpu
    print(json.dumps({"rate": count / seconds, "client_us": cpu / count * 1e6}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
