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

from agentruns.conf import Config

from .control import FD, Control
from .environment import PREFIX, agentruns_settings
from .faults import SHORT_LEASES, WEB_SERVER, WORKER, Saboteur
from .once import Client, OnceError, converse
from .postgres import PostgresError, PostgresServer
from .processes import ROOT, Children, Ended

DRAIN_SECONDS = 5
USER = PASSWORD = "demo"  # noqa: S105 - printed at the start, for a server on the loopback only
FIRST_PORT = 8000
TOO_SOON_SECONDS = 5  # what ends sooner, and was not killed, would only end again


@dataclass(frozen=True, slots=True)
class Finished:
    """The one message was answered; or why not."""

    problem: str | None


def run(*, once: str | None, port: int | None) -> None:
    """Set everything up, serve until told to end (or until one message is answered), tear down."""
    with _ending_on_signals(0 if once is None else 130), ExitStack() as stack:
        server = None if os.environ.get("DATABASE_URL") else _start_database(stack)
        url = server.url if server else os.environ["DATABASE_URL"]
        _use_database(url)
        token = _prepare_database(url)
        listener = stack.enter_context(_listen(port, any_port=once is not None))
        client = Client(listener.getsockname()[1], token)
        if once is not None:
            _answer_once(client, once, listener)
        else:
            _serve(stack, client, listener, server)


def _answer_once(client: Client, content: str, listener: socket.socket) -> None:
    with tempfile.TemporaryFile() as logs, Children() as children:
        _start(children, listener, logs=logs)
        threading.Thread(target=_answer, args=(client, content, children), daemon=True).start()
        _wait(children, logs)


def _serve(
    stack: ExitStack, client: Client, listener: socket.socket, server: PostgresServer | None
) -> None:
    """Run the chat with two workers, so that one is there to end what the other lost."""
    for key, value in SHORT_LEASES.items():
        os.environ.setdefault(PREFIX + key, str(value))
    config = Config(**agentruns_settings(os.environ))  # type: ignore[arg-type]
    children = stack.enter_context(Children())
    control = Control(Saboteur(children, server, config).act)
    stack.callback(control.close)
    os.environ |= {FD: str(control.theirs.fileno()), "DEMO_USER": USER, "DEMO_PASSWORD": PASSWORD}
    control.start()
    _start(children, listener, control=control, workers=2)
    _say("The demo is ready; Ctrl-C ends it")
    print(f"http://127.0.0.1:{client.port}/  (user {USER}, password {PASSWORD})", flush=True)
    _wait(children, restart=True)


def _start_database(stack: ExitStack) -> PostgresServer:
    _say("Starting PostgreSQL")
    server = PostgresServer(settings.DEMO_DIR)
    stack.callback(server.stop)
    try:
        server.start()
    except PostgresError as error:
        raise CommandError(str(error)) from None
    return server


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


def _start(
    children: Children,
    listener: socket.socket,
    *,
    logs: IO[bytes] | None = None,
    control: Control | None = None,
    workers: int = 1,
) -> None:
    _say("Starting the web server and a worker" if workers == 1 else "Starting web server, workers")
    fds = [listener.fileno()] + ([control.theirs.fileno()] if control else [])
    web = ["daphne", "--fd", str(fds[0]), "project.asgi:application"]
    children.start(WEB_SERVER, *web, output=logs, fds=fds)
    worker = [os.fspath(ROOT / "manage.py"), "runworker", "--drain-timeout", str(DRAIN_SECONDS)]
    for number in range(1, workers + 1):
        children.start(f"{WORKER} {number}", *worker, output=logs)


def _answer(client: Client, content: str, children: Children) -> None:
    problem: str | None = "The message was not answered."
    try:
        converse(client, content, sys.stdout, sys.stderr)
        problem = None
    except (OnceError, OSError) as error:
        problem = str(error)
    finally:
        children.news.put(Finished(problem))


def _wait(children: Children, logs: IO[bytes] | None = None, *, restart: bool = False) -> None:
    """Return when the one message is answered; keep the processes of a longer demo alive."""
    while True:
        match children.news.get():
            case Finished(problem=None):
                return
            case Finished(problem=problem):
                raise CommandError(str(problem))
            case Ended(name, code, lived) if restart and _may_start_again(code, lived):
                _say(f"The {name} ended with exit code {code}; starting another")
                children.start_again(name)
            case Ended(name, code):
                _show_end(logs)
                raise CommandError(f"The {name} ended with exit code {code}.")


def _may_start_again(code: int, lived: float) -> bool:
    return code == -signal.SIGKILL or lived > TOO_SOON_SECONDS


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
