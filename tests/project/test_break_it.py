"""Who may break the demo, and what that does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import psutil
import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from agentruns.conf import Config
from project import control
from project.faults import CATALOGUE, Saboteur
from project.processes import Children
from tests.support import until

pytestmark = pytest.mark.django_db


@pytest.fixture
def client() -> Client:
    client = Client(REMOTE_ADDR="127.0.0.1", HTTP_HOST="127.0.0.1")
    client.force_login(get_user_model().objects.create(username="somebody"))
    return client


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Mapping[str, Any]]]:
    """What a supervisor was asked for, as if this process were the demo's web server."""
    requests: list[Mapping[str, Any]] = []
    wire = control.Control(lambda request: requests.append(request) or "Done.")
    wire.start()
    monkeypatch.setenv(control.FD, str(wire.theirs.fileno()))
    yield requests
    wire.close()


def test_the_demo_on_its_own_machine_breaks_what_is_asked_for(
    client: Client, asked: list[Mapping[str, Any]]
) -> None:
    answer = client.post("/break/kill-worker")

    assert answer.status_code == 200
    assert answer.json()["said"].startswith("Done. ")
    assert asked == [{"fault": "kill-worker", "pid": None}]


@pytest.mark.parametrize(
    "sender",
    [
        {"REMOTE_ADDR": "10.0.0.7"},
        {"REMOTE_ADDR": ""},
        {"HTTP_X_FORWARDED_FOR": "10.0.0.7"},
        {"HTTP_FORWARDED": "for=10.0.0.7"},
    ],
)
def test_another_machine_breaks_nothing(
    client: Client, asked: list[Mapping[str, Any]], sender: dict[str, Any]
) -> None:
    assert client.post("/break/kill-worker", **sender).status_code == 403
    assert client.get("/break/row", **sender).status_code == 404
    assert b"Break it" not in client.get("/", **sender).content
    assert asked == []


def test_without_a_demo_nothing_breaks(client: Client) -> None:
    assert client.post("/break/kill-worker").status_code == 403
    assert b"Break it" not in client.get("/").content


def test_breaking_takes_a_post_a_login_and_a_csrf_token(
    client: Client, asked: list[Mapping[str, Any]]
) -> None:
    strict = Client(enforce_csrf_checks=True, REMOTE_ADDR="127.0.0.1", HTTP_HOST="127.0.0.1")
    strict.force_login(get_user_model().objects.get())
    stranger = Client(REMOTE_ADDR="127.0.0.1", HTTP_HOST="127.0.0.1")

    assert client.get("/break/kill-worker").status_code == 405
    assert strict.post("/break/kill-worker").status_code == 403
    assert stranger.post("/break/kill-worker").status_code == 302
    assert asked == []


def test_an_unknown_fault_is_named(client: Client, asked: list[Mapping[str, Any]]) -> None:
    answer = client.post("/break/everything")

    assert answer.status_code == 404
    assert "everything" in answer.json()["detail"]
    assert asked == []


def test_the_page_offers_every_fault(client: Client, asked: list[Mapping[str, Any]]) -> None:
    page = client.get("/").content.decode()

    assert all(f'data-fault="{fault.name}"' in page for fault in CATALOGUE)


@pytest.fixture
def children() -> Iterator[Children]:
    with Children(grace=5) as children:
        children.start("web server", "json.tool", "/dev/stdin")
        children.start("worker 1", "http.server", "--bind", "127.0.0.1", "0")
        yield children


def test_only_a_worker_of_the_demo_is_killed(children: Children) -> None:
    (worker,) = children.pids("worker")
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as stranger:
        saboteur = Saboteur(children, None, Config())

        said = saboteur.act({"fault": "kill-worker", "pid": stranger.pid})

        assert str(worker) in said
        until(lambda: children.pids("worker") == [], "the worker to be gone")
        assert stranger.poll() is None
        stranger.communicate(timeout=10)
    assert stranger.returncode == 0


def test_a_frozen_worker_goes_on_by_itself(children: Children) -> None:
    worker = psutil.Process(children.pids("worker")[0])

    children.freeze(worker.pid, seconds=1)

    until(lambda: worker.status() == psutil.STATUS_STOPPED, "the worker to stand still")
    until(lambda: worker.status() != psutil.STATUS_STOPPED, "the worker to go on")


def test_a_frozen_worker_can_be_ended(children: Children) -> None:
    worker = psutil.Process(children.pids("worker")[0])
    children.freeze(worker.pid, seconds=60)
    until(lambda: worker.status() == psutil.STATUS_STOPPED, "the worker to stand still")

    children.stop()

    assert not worker.is_running()


def test_a_database_that_is_not_the_demos_is_left_alone(children: Children) -> None:
    said = Saboteur(children, None, Config()).act({"fault": "restart-postgres"})

    assert "left alone" in said


def test_a_fault_that_fails_is_told_and_the_wire_goes_on(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire = control.Control(Saboteur(Children(), None, Config()).act)
    wire.start()
    monkeypatch.setenv(control.FD, str(wire.theirs.fileno()))

    said = [client.post(f"/break/{name}").json()["said"] for name in ("kill-worker", "kill-web")]

    assert all(each.startswith("That did not work") for each in said)
    wire.close()
