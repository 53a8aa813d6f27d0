"""The ladder: eight failures of production, each with what answers it, in real processes."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from django.contrib.auth import get_user_model
from django.db import transaction
from rest_framework.authtoken.models import Token

from agentruns import stop_conversation
from agentruns.models import AgentRun, Conversation, Message
from tests.processes.conftest import cluster, conversation, database, start  # noqa: F401
from tests.processes.history import (
    check_all,
    counted,
    ended,
    enqueue,
    events,
    new_conversation,
    outcome,
    reply_of,
    started,
    text_of,
)
from tests.processes.worker import ROOT, WorkerProcess
from tests.support import until

pytestmark = pytest.mark.timeout(240)

Start = Callable[..., WorkerProcess]
LOST = ("failed", "worker_lost")


class WebServer:
    """One daphne of its own; several of them serve the same runs."""

    def __init__(self, database_url: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            fd = listener.fileno()
            self.address = f"http://127.0.0.1:{listener.getsockname()[1]}"
            self.process = subprocess.Popen(
                [sys.executable, "-m", "daphne", "--fd", str(fd), "project.asgi:application"],
                cwd=ROOT,
                env={
                    **os.environ,
                    "DATABASE_URL": database_url,
                    "DJANGO_SETTINGS_MODULE": "tests.settings",
                },
                pass_fds=[fd],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        token, _ = Token.objects.get_or_create(user=get_user_model().objects.get())
        self.headers = {"Authorization": f"Token {token.key}"}

    def one_event_after(self, run: AgentRun, cursor: int) -> dict[str, Any]:
        """Open a stream, take one event, and drop the connection."""
        url = f"{self.address}/api/runs/{run.pk}/events?from={cursor}"
        headers = {**self.headers, "Accept": "text/event-stream"}
        with httpx.stream("GET", url, headers=headers, timeout=60) as stream:
            data = next(line for line in stream.iter_lines() if line.startswith("data:"))
        event: dict[str, Any] = json.loads(data[5:])
        return event

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(20)


@contextmanager
def web_servers(database_url: str, count: int) -> Iterator[list[WebServer]]:
    servers = [WebServer(database_url) for _ in range(count)]
    try:
        yield servers
    finally:
        for server in servers:
            server.kill()


def test_1_the_request_dies_and_the_run_does_not(database: str, start: Start) -> None:  # noqa: F811
    with web_servers(database, 1) as [web]:
        body = json.dumps({"content": "go", "agent": "count", "metadata": {"to": 5}}).encode()
        lines = ["POST /api/runs HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json"]
        lines += [f"Authorization: {web.headers['Authorization']}", f"Content-Length: {len(body)}"]
        port = int(web.address.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall("\r\n".join([*lines, "", ""]).encode() + body)
            until(AgentRun.objects.exists, "the row of the run", seconds=60)
            web.kill()  # the request never got its answer
    run = AgentRun.objects.get()
    start()

    assert outcome(ended(run)) == ("completed", None)
    assert reply_of(run) == "0 1 2 3 4 "


def test_1_what_is_rolled_back_leaves_no_message_and_no_run(database: str) -> None:  # noqa: F811
    chat = new_conversation()

    with transaction.atomic():
        enqueue(chat, "count", to=1)
        transaction.set_rollback(True)

    assert not AgentRun.objects.exists()
    assert not Message.objects.exists()


def test_2_two_workers_want_every_job_and_each_job_runs_once(database: str, start: Start) -> None:  # noqa: F811
    first, second = (start(CONCURRENCY=2) for _ in range(2))

    with transaction.atomic():  # one commit wakes both
        runs = [enqueue(new_conversation(), "count", to=3, pause=0.1) for _ in range(30)]

    for run in runs:
        assert outcome(ended(run)) == ("completed", None)
        assert [event.type for event in events(run)].count("run_started") == 1
        assert reply_of(run) == "0 1 2 "
    pids = {int(run.worker_id.split(":")[-2]) for run in AgentRun.objects.all()}
    assert pids == {first.pid, second.pid}  # they did contend


def test_3_a_worker_dies_and_its_run_ends_with_the_text_so_far(
    conversation: Conversation,  # noqa: F811
    start: Start,  # noqa: F811
) -> None:
    doomed = start("--no-reap")
    run = started(enqueue(conversation, "count"), chars=10)
    waiting = enqueue(conversation, "count", to=2)
    start()

    doomed.kill()

    assert outcome(ended(run)) == LOST
    assert reply_of(run) == text_of(run)
    assert counted(text_of(run))
    assert outcome(ended(waiting)) == ("completed", None)  # the conversation is not stuck
    check_all([conversation])


def test_4_a_worker_that_was_only_slow_writes_nothing_when_it_wakes(
    conversation: Conversation,  # noqa: F811
    start: Start,  # noqa: F811
) -> None:
    slow = start()
    run = started(enqueue(conversation, "count"), chars=10)
    start()

    slow.freeze()
    assert outcome(ended(run)) == LOST
    journal, reply = [event.pk for event in events(run)], reply_of(run)
    slow.thaw()
    slow.wait_for_log("standing down")

    assert [event.pk for event in events(run)] == journal
    assert reply_of(run) == reply
    assert outcome(ended(run)) == LOST


def test_5_every_signal_is_lost_and_a_poll_finds_the_rows(
    conversation: Conversation,  # noqa: F811
    start: Start,  # noqa: F811
) -> None:
    start(LISTEN_DATABASE=None, POLL_SECONDS=0.5)

    run = enqueue(conversation, "count", to=3)
    assert outcome(ended(run)) == ("completed", None)
    endless = started(enqueue(conversation, "count"))
    stop_conversation(conversation)

    assert outcome(ended(endless)) == ("cancelled", None)


def test_6_a_stream_is_dropped_at_every_event_and_rejoined_elsewhere(
    database: str,  # noqa: F811
    conversation: Conversation,  # noqa: F811
    start: Start,  # noqa: F811
) -> None:
    start()
    run = started(enqueue(conversation, "count", to=8, pause=0.3))

    with web_servers(database, 2) as servers:
        seen: list[dict[str, Any]] = []
        for web in itertools.cycle(servers):
            seen.append(web.one_event_after(run, seen[-1]["seq"] if seen else 0))
            if seen[-1]["type"] == "complete":
                break

    assert [event["seq"] for event in seen] == list(range(1, len(seen) + 1))
    assert len(seen) == len(events(run)) > 8
    assert "".join(e["delta"] for e in seen if e["type"] == "content_delta") == reply_of(run)


def test_7_turns_sent_at_once_run_one_after_the_other(
    conversation: Conversation,  # noqa: F811
    start: Start,  # noqa: F811
) -> None:
    start()
    start()

    runs = [enqueue(conversation, "count", to=number) for number in (3, 4, 5)]

    for run in runs:
        assert outcome(ended(run)) == ("completed", None)
    check_all([conversation])  # each started when the one before had ended
    transcript = Message.objects.filter(conversation=conversation).transcript()
    said = list(transcript.values_list("role", "content"))
    assert [role for role, _ in said] == ["user", "assistant"] * 3
    assert [text for role, text in said if role == "assistant"] == [
        "0 1 2 ",
        "0 1 2 3 ",
        "0 1 2 3 4 ",
    ]


def test_8_stop_means_that_nothing_more_starts(
    conversation: Conversation,  # noqa: F811
    start: Start,  # noqa: F811
) -> None:
    start()
    running = started(enqueue(conversation, "count"), chars=10)
    waiting = [enqueue(conversation, "count", to=1) for _ in range(2)]

    stopped = stop_conversation(conversation)

    assert outcome(ended(running)) == ("cancelled", None)
    assert counted(str(reply_of(running)))
    assert [draft.content for draft in stopped.drafts] == ["go", "go"]
    for run in waiting:
        assert outcome(ended(run)) == ("cancelled", None)
        assert run.started_at is None
    after = enqueue(conversation, "count", to=1)
    assert outcome(ended(after)) == ("completed", None)
