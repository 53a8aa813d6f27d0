"""Who is let in: the project's own REST framework classes, for every form of the stream."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any
from unittest import mock

import httpx
import pytest
from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from websockets.exceptions import InvalidStatus

from agentruns import tokens
from tests.support import PATIENCE_SECONDS

from .conftest import client_of, client_with, new_user
from .servers import WebServer
from .told import Told
from .viewers import Client


@pytest.fixture
def told(user: Any) -> Told:
    told = Told(user)
    told.say("secret")
    told.end()
    return told


def session_of(user: Any) -> str:
    session = import_module(settings.SESSION_ENGINE).SessionStore()
    session[SESSION_KEY] = str(user.pk)
    session[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
    session[HASH_SESSION_KEY] = user.get_session_auth_hash()
    session.save()
    return str(session.session_key)


def outcomes(client: Client, told: Told, query: str = "") -> tuple[int, int, int | None]:
    """Status of the stream and of its JSON form, and the close code of the socket."""
    with client.open(told.events + query) as response:
        stream = response.status_code
        response.read()
    page = client.http.get(told.events + query, headers={"Accept": "application/json"})
    return stream, page.status_code, client.close_code(told.socket + query)


LET_IN = (200, 200, 1000)


@pytest.mark.parametrize(
    "headers",
    [
        lambda user: {"Cookie": f"session={session_of(user)}"},
        lambda user: {"X-Badge": user.get_username()},
        lambda user: {"Authorization": client_of(mock.Mock(url=""), user).headers["Authorization"]},
    ],
    ids=["session", "custom", "token"],
)
def test_each_of_the_projects_classes_lets_its_users_in(
    server: WebServer, user: Any, told: Told, headers: Callable[[Any], dict[str, str]]
) -> None:
    assert outcomes(client_with(server, headers(user)), told) == LET_IN


@pytest.mark.parametrize(
    "headers",
    [{}, {"Authorization": "Token wrong"}, {"Cookie": "session=wrong"}, {"X-Badge": "nobody"}],
    ids=["none", "token", "session", "custom"],
)
def test_without_credentials_that_hold_nobody_is_let_in(
    server: WebServer, told: Told, headers: dict[str, str]
) -> None:
    assert outcomes(client_with(server, headers), told) == (401, 401, 4401)


def test_an_inactive_user_is_not_let_in(client: Client, user: Any, told: Told) -> None:
    token = tokens.issue(told.row, user)
    session = client_with(client.server, {"Cookie": f"session={session_of(user)}"})
    user.is_active = False
    user.save()

    for viewer, query in ((client, ""), (session, ""), (session, f"?token={token}")):
        assert outcomes(viewer, told, query) == (401, 401, 4401)


def test_the_projects_permissions_and_throttles_hold_for_streams(server: WebServer) -> None:
    banned, hasty = new_user("banned"), new_user("hasty")

    assert outcomes(client_of(server, banned), Told(banned)) == (403, 403, 4401)
    told = Told(hasty)
    told.end()
    client = client_of(server, hasty)
    assert client.follow(told.events).ended
    assert client.follow(told.events).ended
    with client.open(told.events) as response:
        assert response.status_code == 429
        assert int(response.headers["retry-after"]) > 0
    assert client.close_code(told.socket) == 4429


def test_a_viewer_who_may_change_nothing_stops_nothing(server: WebServer) -> None:
    guest = new_user("guest")
    told = Told(guest)

    with client_of(server, guest).socket(told.socket) as socket:
        socket.send('{"type": "stop"}')
        for _ in range(2):  # it has been heard by then
            while json.loads(socket.recv(timeout=PATIENCE_SECONDS))["type"] != "keepalive":
                pass

    assert not told.refreshed().cancel_requested


def test_a_stream_token_opens_its_own_runs_streams(client: Client, user: Any, told: Told) -> None:
    answer = client.http.post(f"/api/runs/{told.id}/stream-token")
    assert answer.status_code == 201
    anybody = client_with(client.server, {"Origin": "http://localhost:3000"})
    query = f"?token={answer.json()['token']}"

    assert outcomes(anybody, told, query) == LET_IN
    assert outcomes(anybody, told, query) == LET_IN  # EventSource opens the same URL again
    with anybody.open(told.events + query) as response:
        assert response.headers["access-control-allow-origin"] == "*"
    with client.open(told.events) as response:
        assert "access-control-allow-origin" not in response.headers


def test_a_stream_token_opens_nothing_else(server: WebServer, user: Any, told: Told) -> None:
    anybody, other = client_with(server, {}), Told(user)
    with mock.patch("django.core.signing.time.time", return_value=time.time() - 601):
        expired = tokens.issue(told.row, user)
    token = tokens.issue(told.row, user)

    for run, query in ((other, token), (told, expired), (told, token[:-1]), (told, "")):
        assert outcomes(anybody, run, f"?token={query}") == (401, 401, 4401)
    foreign = tokens.issue(told.row, new_user())
    assert outcomes(anybody, told, f"?token={foreign}") == (404, 404, 4404)
    assert anybody.http.get(f"/api/runs/{told.id}?token={token}").status_code == 401


def test_a_post_by_session_needs_the_csrf_token(server: WebServer, user: Any, told: Told) -> None:
    client = client_with(server, {"Cookie": f"session={session_of(user)}; csrftoken={'a' * 32}"})
    url = f"/api/runs/{told.id}/stream-token"

    assert client.http.post(url).status_code == 403
    assert client.http.post(url, headers={"X-CSRFToken": "a" * 32}).status_code == 201


@pytest.mark.parametrize(
    "origin", ["http://localhost:3000", "http://127.0.0.1", "https://[::1]:8443", None]
)
def test_a_socket_from_an_allowed_origin_or_none_is_taken(
    client: Client, told: Told, origin: Any
) -> None:
    assert client.close_code(told.socket, origin=origin) == 1000


@pytest.mark.parametrize(
    "origin",
    ["https://evil.example", "null", "http://localhost.evil.example", "http://[", "file://"],
)
def test_a_socket_from_a_foreign_origin_is_refused_before_it_is_accepted(
    client: Client, told: Told, origin: Any
) -> None:
    with pytest.raises(InvalidStatus) as refused:
        client.close_code(told.socket, origin=origin)

    # Daphne itself refuses what is no URL.
    assert refused.value.response.status_code in ((400, 403) if origin == "http://[" else (403,))


def test_the_head_of_a_refusal_names_how_to_come_in(server: WebServer, told: Told) -> None:
    answer = httpx.get(server.url + told.events, headers={"Accept": "text/event-stream"})

    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Token"
    assert set(answer.json()) == {"detail", "code"}
