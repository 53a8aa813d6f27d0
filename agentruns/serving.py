"""Ask the project's own ASGI application for a stream, as a client would."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode, urlsplit

from django.db import connections
from django.urls import NoReverseMatch, reverse
from django.utils.module_loading import import_string

from . import db, tokens
from .conf import allowed_hosts, asgi_application
from .findings import Finding, Level
from .models import AgentRun
from .reader import close_reader

ANSWER_SECONDS = 15.0
LAST_SECONDS = 2.0
NOBODY = "00000000-0000-0000-0000-000000000000"


def streams() -> Iterator[Finding]:
    """Whether a stream comes: under ASGI, through the project's routes and middleware, unpacked."""

    def found(level: Level, sentence: str, hint: str = "") -> Finding:
        return Finding("streams", level, sentence, hint)

    application = asgi_application()
    if application is None:
        yield found(
            "warning",
            "ASGI_APPLICATION is not set: under WSGI a run's events come as JSON only (a request "
            "for a stream alone gets 406).",
            "Serve the project under ASGI; docs/deployment.md shows how.",
        )
        return
    run = AgentRun.objects.ended().order_by("-pk").first()
    try:
        path = reverse("agentruns:run-events", args=[run.pk if run else NOBODY])
    except NoReverseMatch:
        yield found(
            "warning",
            "No URL leads to agentruns.urls: there is no HTTP API.",
            'Add path("api/", include("agentruns.urls")) to the URLconf, unless that is meant.',
        )
        return
    query = {"token": tokens.issue(run, run.user)} if run else {}
    status, headers, body = _ask(import_string(application), path, query)
    if status == 406:
        yield found(
            "error",
            f"{application} answers {path} by Django, which has no streams.",
            "Route it to agentruns.routing.http_urlpatterns, before Django's own application.",
        )
    elif "content-encoding" in headers:
        yield found(
            "error",
            f"The stream comes packed ({headers['content-encoding']}): packing holds events back.",
            "Leave text/event-stream out of what the compressing middleware takes.",
        )
    elif run and (status != 200 or b'"complete"' not in body):
        yield found(
            "error",
            f"The stream of run {run.pk} answered {status} and did not come to its end.",
            "Look at the web server's log.",
        )
    elif run:
        yield found("ok", f"{application} streams {path} to its end, not packed.")
    else:
        yield found(
            "ok",
            f"{application} routes {path} to the streams; no run has ended that could be read.",
        )


def _ask(application: Any, path: str, query: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
    host = next((name for name in allowed_hosts() if not name.startswith((".", "*"))), "localhost")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "https",
        "path": urlsplit(path).path,
        "raw_path": path.encode(),
        "query_string": urlencode(query).encode(),
        "root_path": "",
        "headers": [
            (b"host", host.encode()),
            (b"accept", b"text/event-stream"),
            (b"accept-encoding", b"gzip, br"),
        ],
        "client": ("127.0.0.1", 0),
        "server": (host, 443),
    }
    try:
        return asyncio.run(_answer(application, scope))
    finally:
        close_reader(timeout=LAST_SECONDS)
        db.close_pool()
        connections.close_all()


async def _answer(application: Any, scope: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
    status, headers, pieces = 0, {}, []
    asked, done = False, asyncio.Event()

    async def receive() -> dict[str, Any]:
        nonlocal asked
        if not asked:
            asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await done.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        nonlocal status, headers
        if message["type"] == "http.response.start":
            status = message["status"]
            headers = {k.decode().lower(): v.decode() for k, v in message["headers"]}
            return
        pieces.append(message.get("body", b""))
        if not message.get("more_body"):
            done.set()

    async with asyncio.timeout(ANSWER_SECONDS):
        await application(scope, receive, send)
    return status, headers, b"".join(pieces)
