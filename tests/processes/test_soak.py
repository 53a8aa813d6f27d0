"""Random faults for minutes, then the history of every run: `pytest -m soak`.

`SOAK_SECONDS` and `SOAK_SEED` choose how long and which faults; the seed is printed.
"""

from __future__ import annotations

import collections
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db import connection

from agentruns import (
    NotRetryable,
    QueueFull,
    enqueue_run,
    retry_run,
    stop_conversation,
    stop_run,
)
from agentruns.models import AgentRun, Conversation, Message
from tests.support import until

from .cluster import Cluster
from .history import check_all, counted, new_conversation, reply_of
from .worker import WorkerProcess

SECONDS = float(os.environ.get("SOAK_SECONDS", "600"))
SEED = int(os.environ.get("SOAK_SEED") or random.SystemRandom().randrange(2**32))
WORKERS = 3
CONVERSATIONS = 12
COUNTING = ("count", "repeatable", "patient", "plain", "exiting", "yielding")
AGENTS = (*COUNTING, "tooling", "deaf")
SETTINGS = {"CONCURRENCY": 8, "RUN_TIMEOUT_SECONDS": 8, "DRAIN_SECONDS": 1}


class Soak:
    """One seed's deeds and faults."""

    def __init__(self, start: Callable[..., WorkerProcess], cluster: Cluster) -> None:
        self.dice = random.Random(SEED)
        self.start = start
        self.cluster = cluster
        self.workers = [start(ready=False, **SETTINGS) for _ in range(WORKERS)]
        self.conversations = [new_conversation() for _ in range(CONVERSATIONS)]
        self.done: collections.Counter[str] = collections.Counter()

    def step(self) -> None:
        deeds = [self.post] * 30 + [self.stop, self.stop_all, self.retry, self.resend] * 3
        faults = [self.kill, self.freeze, self.terminate, self.end, self.terminate_all]
        deed = self.dice.choice([*deeds, *faults])
        if self.dice.random() < 0.002:
            deed = self.restart_server
        self.done[deed.__name__] += 1
        deed()

    def post(self) -> None:
        self.enqueue(self.dice.choice(self.conversations))

    def enqueue(self, conversation: Conversation, draft: Message | None = None) -> None:
        metadata = {"to": self.dice.randrange(1, 120), "pause": self.dice.choice([0, 0.01, 0.05])}
        agent = self.dice.choice(AGENTS)
        try:
            enqueue_run(
                conversation=conversation,
                agent=agent,
                content="go",
                metadata=metadata,
                draft=draft,
            )
        except QueueFull:
            self.done["queue full"] += 1

    def resend(self) -> None:
        if (draft := Message.objects.drafts().order_by("?").first()) is not None:
            self.enqueue(Conversation.objects.get(pk=draft.conversation_id), draft)

    def stop(self) -> None:
        if (run := AgentRun.objects.active().order_by("?").first()) is not None:
            stop_run(run)

    def stop_all(self) -> None:
        stop_conversation(self.dice.choice(self.conversations))

    def retry(self) -> None:
        broken = AgentRun.objects.ended().exclude(status="completed").exclude(started_at=None)
        if (run := broken.order_by("-finished_at").first()) is not None:
            try:
                retry_run(run)
            except NotRetryable:
                self.done["not retryable"] += 1

    def kill(self) -> None:
        self.replace(signal.SIGKILL)

    def end(self) -> None:
        self.replace(signal.SIGTERM)

    def replace(self, number: signal.Signals) -> None:
        place = self.dice.randrange(WORKERS)
        old = self.workers[place]
        old.wait_for_log("slots, agents")
        old.signal(number)
        self.workers[place] = self.start(ready=False, **SETTINGS)
        assert old.ended() == (0 if number == signal.SIGTERM else -number), old.log

    def freeze(self) -> None:
        worker = self.dice.choice(self.workers)
        worker.freeze()
        thaw = threading.Timer(self.dice.uniform(0.5, 7), worker.thaw)
        thaw.start()
        thaw.join()

    def terminate(self) -> None:
        self.terminate_all(limit="LIMIT 1")

    def terminate_all(self, limit: str = "") -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM (SELECT pid FROM pg_stat_activity WHERE "
                "application_name LIKE 'agentruns%' AND datname = current_database() "
                f"ORDER BY random() {limit}) doomed"
            )

    def restart_server(self) -> None:
        self.cluster.restart()

    def settle(self) -> None:
        """Stop everything, and let it end."""
        for conversation in self.conversations:
            stop_conversation(conversation)
        until(lambda: not AgentRun.objects.active().exists(), "the end of all runs", seconds=60)


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 300)
def test_every_history_is_whole_after_random_faults(
    start: Callable[..., WorkerProcess], cluster: Cluster
) -> None:
    print(f"SOAK_SEED={SEED}")
    soak = Soak(start, cluster)
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        soak.step()
    soak.settle()

    check_all(soak.conversations)
    runs = list(AgentRun.objects.all())
    for run in runs:
        if run.agent in COUNTING:
            assert counted(reply_of(run) or "")
        if run.started_at is not None and run.finished_at is not None:
            assert run.finished_at - run.started_at < timedelta(seconds=60)
    ended = collections.Counter((run.status, (run.error or {}).get("code")) for run in runs)
    print(f"{len(runs)} runs: {dict(ended)}; {dict(soak.done)}")
    for worker in soak.workers:
        assert worker.drain() == 0
