"""The API through real servers, where headers and bodies are bytes on a socket."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from rest_framework.authtoken.models import Token

from agentruns.models import AgentRun
from tests.factories import AgentRunFactory, UserFactory, journal
from tests.support import free_port, is_open, until

ROOT = Path(__file__).resolve().parent.parent.parent
COMMANDS = {
    "daphne": ("daphne", "-b", "127.0.0.1", "-p", "{port}", "project.asgi:application"),
    "uvicorn": ("uvicorn", "--host", "127.0.0.1", "--port", "{port}", "project.asgi:application"),
}
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(params=COMMANDS)
def address(request: Any, database_url: str, tmp_path: Path) -> Iterator[str]:
    port = free_port()
    command = [part.format(port=port) for part in COMMANDS[request.param]]
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=ROOT,
            env={**os.environ, "DATABASE_URL": database_url},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        until(lambda: is_open(port) or process.poll() is not None, "the server to listen")
        assert process.poll() is None, log.read_text()
        yield f"http://127.0.0.1:{port}/api"
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def user(transactional_db: None) -> Any:
    return UserFactory()


@pytest.fixture
def client(address: str, user: Any) -> Iterator[httpx.Client]:
    token = Token.objects.create(user=user)
    headers = {"Authorization": f"Token {token.key}"}
    with httpx.Client(base_url=address, headers=headers, timeout=30) as client:
        yield client


def test_a_turn_from_post_to_stop(client: httpx.Client, address: str) -> None:
    posted = client.post("/runs", json={"content": "é漢😀"}, headers={"Idempotency-Key": "k"})
    again = client.post("/runs/", json={"content": "é漢😀"}, headers={"Idempotency-Key": "k"})

    assert (posted.status_code, again.status_code) == (202, 202)
    assert again.headers["Idempotent-Replayed"] == "true"
    assert again.json() == posted.json()
    location = httpx.URL(address).copy_with(path=posted.headers["Location"])
    assert client.get(location).json() == posted.json()
    conversation = f"/conversations/{posted.json()['conversation_id']}"
    assert client.get(f"{conversation}/messages").json()["results"][0]["content"] == "é漢😀"
    assert client.get(conversation).json()["active_runs"] == [posted.json()]
    stopped = client.post(f"{conversation}/stop")
    assert stopped.json()["cancelled"] == [posted.json()["run_id"]]
    assert client.post(f"{location.path}/stop".removeprefix("/api")).status_code == 200


def test_refusals_are_json_on_the_wire_too(client: httpx.Client, address: str) -> None:
    for accept in ("image/png", "text/event-stream", "x", ""):
        refused = httpx.get(f"{address}/runs", headers={"Accept": accept})
        assert (refused.status_code, refused.json()["code"]) == (401, "not_authenticated")
    json_type = {"Content-Type": "application/json"}
    for body in (b"{", b"\xff", b"[" * 100_000, b'"x"', b""):
        assert client.post("/runs", content=body, headers=json_type).status_code == 400
    for key in (b"", b"a" * 256, "é".encode()):
        refused = client.post("/runs", json={"content": "Hi"}, headers=[(b"Idempotency-Key", key)])
        assert (refused.status_code, refused.json()["code"]) == (400, "invalid_idempotency_key")
    assert client.get("/runs/%00").status_code == 404
    assert client.get("/runs?status=%ff").status_code == 400
    assert AgentRun.objects.count() == 0


def test_a_body_may_come_in_pieces(client: httpx.Client) -> None:
    def pieces() -> Iterator[bytes]:
        yield from (b'{"content": ', b'"' + b"a" * 90_000, b'"}')

    answer = client.post("/runs", content=pieces(), headers={"Content-Type": "application/json"})

    assert answer.status_code == 202


def test_events_have_both_forms(client: httpx.Client, user: Any) -> None:
    run = AgentRunFactory(ended=True, last_seq=3, conversation__user=user)
    journal(run, ("complete", {"status": "completed", "error": None, "message_id": None}))
    token = client.post(f"/runs/{run.pk}/stream-token").json()["token"]

    as_json = client.get(f"/runs/{run.pk}/events", headers={"Accept": "application/json"})
    as_stream = httpx.get(f"{client.base_url}runs/{run.pk}/events?from=2&token={token}", timeout=30)

    assert as_json.json()["cursor"] == 3
    assert as_stream.headers["Content-Type"].startswith("text/event-stream")
    assert as_stream.text.startswith('id: 3\ndata: {"type": "complete", "seq": 3, ')
    assert client.get(f"/runs/{run.pk}/events?from=3").status_code == 204
