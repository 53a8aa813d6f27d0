"""The whole demo in one command: a database, a web server and a worker, ended together."""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import IO

import dj_database_url
from django.conf import settings
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import OperationalError, connections

from .once import Client, OnceError, converse
from .postgres import PostgresError, PostgresServer
from .processes import ROOT, Children, Ended

DRAIN_SECONDS = 5
USER = PASSWORD = "demo"  # noqa: S105 - printed at the start, for a server on the loopback only
FIRST_PORT = 8000
TOO_SOON_SECONDS = 5  # what ends sooner would only end again


@dataclass(frozen=True, slots=True)
class Finished:
    """The one message was answered; or why not."""

    problem: str | None


def run(*, once: str | None, port: int | None) -> None:
    """Set everything up, serve until told to end (or until one message is answered), tear down."""
    with _ending_on_signals(0 if once is None else 130), ExitStack() as stack:
        url = os.environ.get("DATABASE_URL") or _start_database(stack)
        _use_database(url)
        token = _prepare_database(url)
        listener = stack.enter_context(_listen(port, any_port=once is not None))
        logs = stack.enter_context(tempfile.TemporaryFile()) if once is not None else None
        children = stack.enter_context(Children())
        _start(children, listener, logs)
        client = Client(listener.getsockname()[1], token)
        if once is not None:
            threading.Thread(target=_answer, args=(client, once, children), daemon=True).start()
        else:
            _say("The demo is ready; Ctrl-C ends it")
            print(
                f"http://127.0.0.1:{client.port}/  (user {USER}, password {PASSWORD})", flush=True
            )
        _wait(children, logs)


def _start_database(stack: ExitStack) -> str:
    _say("Starting PostgreSQL")
    server = PostgresServer(settings.DEMO_DIR)
    stack.callback(server.stop)
    try:
        return server.start()
    except PostgresError as error:
        raise CommandError(str(error)) from None


def _use_database(url: str) -> None:
    """Point this process and its children at a database that was not there with the settings."""
    os.environ["DATABASE_URL"] = url
    settings.DATABASES["default"] = dj_database_url.parse(url)
    connections.settings = connections.configure_settings(settings.DATABASES)
    with suppress(AttributeError):  # the system checks may have made a connection object
        del connections["default"]


def _prepare_database(url: str) -> str:
    """Migrate, and make the demo's user; return its token."""
    from django.contrib.auth import get_user_model
    from rest_framework.authtoken.models import Token

    _say("Bringing the tables up to date")
    try:
        call_command("migrate", verbosity=0, interactive=False)
    except OperationalError as error:
        reason = str(error).strip().splitlines()[0]
        raise CommandError(f"The database of DATABASE_URL can't be used: {reason}") from None
    users = get_user_model()._default_manager
    user, is_new = users.get_or_create(
        username=USER, defaults={"is_staff": True, "is_superuser": True}
    )
    if is_new:
        user.set_password(PASSWORD)
        user.save()
    token, _ = Token.objects.get_or_create(user=user)
    connections.close_all()
    return str(token.key)


def _listen(port: int | None, *, any_port: bool) -> socket.socket:
    """Listen before the web server runs: the port is certain, and early requests wait for it."""
    wanted = [port] if port is not None else [0] if any_port else [FIRST_PORT, 0]
    for candidate in wanted:
        with suppress(OSError):
            return socket.create_server(("127.0.0.1", candidate), backlog=128)
    raise CommandError(f"Port {port} of 127.0.0.1 is in use: choose another with --port.")


def _start(children: Children, listener: socket.socket, logs: IO[bytes] | None) -> None:
    _say("Starting the web server and a worker")
    fd = listener.fileno()
    web = ["daphne", "--fd", str(fd), "project.asgi:application"]
    children.start("web server", *web, output=logs, fds=[fd])
    worker = [os.fspath(ROOT / "manage.py"), "runworker", "--drain-timeout", str(DRAIN_SECONDS)]
    children.start("worker", *worker, output=logs)


def _answer(client: Client, content: str, children: Children) -> None:
    problem: str | None = "The message was not answered."
    try:
        converse(client, content, sys.stdout, sys.stderr)
        problem = None
    except (OnceError, OSError) as error:
        problem = str(error)
    finally:
        children.news.put(Finished(problem))


def _wait(children: Children, logs: IO[bytes] | None) -> None:
    """Return when the one message is answered; keep the processes of a longer demo alive."""
    while True:
        match children.news.get():
            case Finished(problem=None):
                return
            case Finished(problem=str(problem)):
                raise CommandError(problem)
            case Ended(name, code, lived) if logs is None and lived > TOO_SOON_SECONDS:
                _say(f"The {name} ended with exit code {code}; starting another")
                children.start_again(name)
            case Ended(name, code):
                _show_end(logs)
                raise CommandError(f"The {name} ended with exit code {code}.")


def _show_end(logs: IO[bytes] | None) -> None:
    if logs:
        logs.seek(0)
        _say(logs.read().decode(errors="replace")[-4000:])


@contextmanager
def _ending_on_signals(code: int) -> Iterator[None]:
    """Turn SIGTERM, SIGINT and SIGHUP into an orderly end with this exit code."""

    def end(*_: object) -> None:
        for each in previous:
            signal.signal(each, signal.SIG_IGN)  # the end is on its way, and bounded
        raise SystemExit(code)

    heard = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    previous = {each: signal.signal(each, end) for each in heard}
    try:
        yield
    finally:
        for each, handler in previous.items():
            signal.signal(each, handler)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
