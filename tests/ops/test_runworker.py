"""`runworker` as an orchestrator sees it: its log, its liveness, its ports."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from agentruns import enqueue_run
from agentruns.models import AgentRun, SeenWorker
from agentruns.status import read_status
from tests.factories import UserFactory
from tests.support import PATIENCE_SECONDS, until

ROOT = Path(__file__).resolve().parent.parent.parent

Start = Callable[..., "Running"]


class Running:
    """A worker process, with the log that it writes."""

    def __init__(self, url: str, log: Path, *arguments: str) -> None:
        self.log = log
        self._stream = log.open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "manage.py", "runworker", *arguments],
            cwd=ROOT,
            env={**os.environ, "DATABASE_URL": url},
            stderr=self._stream,
        )

    def lines(self) -> list[str]:
        return self.log.read_text().splitlines()

    def find(self, words: str) -> str:
        """The first line of the log that holds these words, once there is one."""
        found: str = until(
            lambda: next((line for line in self.lines() if words in line), ""), f"{words!r}"
        )
        return found

    def port(self) -> int:
        return int(self.find("answering").rpartition(":")[2].strip('"}'))

    def end(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(PATIENCE_SECONDS)
        self._stream.close()
        return code


@pytest.fixture
def start(database_url: str, tmp_path: Path) -> Iterator[Start]:
    with ExitStack() as stack:

        def started(*arguments: str) -> Running:
            running = Running(database_url, tmp_path / "log", *arguments)
            stack.callback(running.end)
            return running

        yield started


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()


def test_every_event_of_its_life_is_a_line_of_json(start: Start) -> None:
    worker = start("--json-logs", "--worker-id", "json")
    run = enqueue_run(conversation=None, user=UserFactory(), content="Hi", agent="failing")
    worker.find("ended failed (agent_error)")
    assert worker.end() == 0

    said = [json.loads(line) for line in worker.lines()]

    assert all({"time", "level", "logger", "message"} <= set(line) for line in said)
    messages = [line["message"] for line in said]
    assert messages[0].startswith("worker json: 20 slots, agents ")
    ours = [line["message"] for line in said if line.get("run_id") == str(run.pk)]
    assert ours[0].startswith(f"claimed run {run.pk} (agent 'failing', attempt 1)")
    assert messages[-1] == "worker json: ended"


def test_an_idle_worker_is_seen_and_one_that_ended_is_not(start: Start) -> None:
    worker = start("--worker-id", "idle")
    until(lambda: SeenWorker.objects.filter(worker_id="idle").exists(), "the worker's row")
    [seen] = read_status().live_workers
    assert (seen.worker_id, seen.slots, seen.busy, seen.draining) == ("idle", 20, 0, False)
    assert "assistant" in seen.agents

    assert worker.end() == 0

    assert read_status().workers == []


def test_a_killed_worker_is_seen_until_its_lease_is_over(start: Start) -> None:
    worker = start("--worker-id", "killed")
    until(lambda: SeenWorker.objects.exists(), "the worker's row")

    worker.process.kill()
    worker.process.wait(PATIENCE_SECONDS)

    assert SeenWorker.objects.get().worker_id == "killed"
    SeenWorker.objects.update(gone_at="2020-01-01T00:00:00Z")
    [gone] = read_status().workers
    assert not gone.live


def test_the_liveness_file_is_touched_again_and_again_and_goes_with_the_worker(
    start: Start, tmp_path: Path
) -> None:
    file = tmp_path / "alive"
    worker = start("--liveness-file", str(file))
    first = until(lambda: file.exists() and file.stat().st_mtime, "the file")

    until(lambda: file.stat().st_mtime > first, "a second touch")

    assert worker.end() == 0
    assert not file.exists()


def test_a_frozen_worker_lets_its_liveness_file_age(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "alive"
    worker = start("--liveness-file", str(file))
    until(file.exists, "the file")
    worker.process.send_signal(signal.SIGSTOP)
    try:
        stopped = file.stat().st_mtime
        until(lambda: time.time() > stopped + 2.5, "time to pass")
        assert file.stat().st_mtime == stopped
    finally:
        worker.process.send_signal(signal.SIGCONT)


def test_the_health_port_says_live_and_ready_and_not_ready_while_it_drains(start: Start) -> None:
    worker = start("--health-port", "0", "--drain-timeout", "5")
    run = enqueue_run(conversation=None, user=UserFactory(), content="60", agent="slow")
    port = worker.port()
    until(lambda: get(port, "/ready")[0] == 200, "readiness")
    until(lambda: AgentRun.objects.get(pk=run.pk).status == "running", "the run")
    assert get(port, "/live")[0] == 200
    assert get(port, "/elsewhere")[0] == 404

    worker.process.send_signal(signal.SIGTERM)
    until(lambda: get(port, "/ready")[0] == 503, "the drain")

    assert get(port, "/live")[0] == 200
    assert worker.process.wait(PATIENCE_SECONDS) == 0


def test_the_metrics_port_counts_what_the_worker_did_and_how_the_queue_stands(
    start: Start,
) -> None:
    worker = start("--metrics-port", "0")
    enqueue_run(conversation=None, user=UserFactory(), content="6 * 7", agent="assistant")
    worker.find("ended completed")

    status, page = get(worker.port(), "/metrics")

    assert status == 200
    samples = dict(line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
    assert samples['agentruns_claims_total{agent="assistant"}'] == "1.0"
    ended = 'agentruns_endings_total{agent="assistant",code="",status="completed"}'
    assert samples[ended] == "1.0"
    for name in ("claim_wait", "first_event", "run"):
        assert samples[f'agentruns_{name}_seconds_count{{agent="assistant"}}'] == "1.0"
    assert float(samples["agentruns_flush_rows_sum"]) >= 3
    assert float(samples["agentruns_flush_seconds_count"]) >= 1
    assert samples["agentruns_workers"] == "1.0"
    assert samples["agentruns_database_up"] == "1.0"


def test_a_port_that_is_taken_is_said(start: Start) -> None:
    first = start("--health-port", "0")
    port = first.port()

    second = subprocess.run(
        [sys.executable, "manage.py", "runworker", "--health-port", str(port)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )

    assert second.returncode == 1
    assert f"Cannot listen on 127.0.0.1:{port}" in second.stderr
