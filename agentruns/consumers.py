"""The streams: server-sent events and WebSocket, from one tail.

Rung 6. The socket owns nothing: any process serves any run from any cursor. A stream never ends
before `complete` as if it had: while the database is away it stays open with keepalives, and a
process that shuts down cuts it off, so that the client comes back with its cursor.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from django.core.asgi import get_asgi_application
from django.http import HttpResponse, JsonResponse
from django.http.request import split_domain_port, validate_host
from rest_framework.exceptions import APIException

from . import db
from .admission import Admission, admit
from .conf import allowed_hosts
from .errors import Unavailable
from .events import Frame
from .negotiation import prefers_stream
from .pace import cut, paced
from .shutdown import cut_off_at_shutdown
from .stop import stop_run
from .tail import KEEPALIVE, Batch, tail

logger = logging.getLogger(__name__)

Scope = dict[str, Any]
Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

ADMISSION_SECONDS = 10.0
"""How long a new viewer waits for a database that is away."""

STREAM_HEADERS = [
    (b"Content-Type", b"text/event-stream; charset=utf-8"),
    (b"Cache-Control", b"no-cache, no-transform"),
    (b"X-Accel-Buffering", b"no"),
]

CLOSED_AT_THE_END = 1000
CLOSED_BAD_CURSOR = 4400
CLOSED_NO_CREDENTIALS = 4401
CLOSED_NOT_FOUND = 4404
CLOSED_TOO_MANY = 4429
CLOSED_TRY_AGAIN = 4503  # 1013 says the same, but daphne refuses to send it
_CLOSE_CODES = {
    204: CLOSED_AT_THE_END,
    400: CLOSED_BAD_CURSOR,
    401: CLOSED_NO_CREDENTIALS,
    403: CLOSED_NO_CREDENTIALS,
    404: CLOSED_NOT_FOUND,
    429: CLOSED_TOO_MANY,
}


async def run_events(scope: Scope, receive: Receive, send: Send) -> None:
    """`GET runs/{id}/events`: the stream for a client that takes one, else Django's JSON form."""
    if scope["method"] not in ("GET", "HEAD") or not prefers_stream(header(scope, b"accept")):
        await _django()(scope, receive, send)
        return
    await _until_gone(_serve_events(scope, send), receive, send)


async def run_socket(scope: Scope, receive: Receive, send: Send) -> None:
    """`ws/runs/{id}`: the same events as JSON text frames; takes `{"type": "stop"}`."""
    await receive()  # websocket.connect
    if not is_allowed_origin(header(scope, b"origin")):
        await send({"type": "websocket.close"})  # before accepting: a 403
        return
    await send({"type": "websocket.accept"})
    stops = asyncio.Event()

    async def hear() -> Message:
        message = await receive()
        if _asks_for_stop(message):
            stops.set()
        return message

    await _until_gone(_serve_socket(scope, send, stops), hear, send)


async def _until_gone(serving: Coroutine[Any, Any, None], receive: Receive, send: Send) -> None:
    """Serve until that is done or the client has left. Nothing escapes: daphne would hang on it."""
    task = asyncio.ensure_future(serving)
    gone = asyncio.ensure_future(_farewell(receive))
    try:
        with cut_off_at_shutdown(task):
            await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        task.cancel()
        gone.cancel()
        for result in await asyncio.gather(task, gone, return_exceptions=True):
            if isinstance(result, Exception) and not isinstance(result, OSError):
                logger.error("a stream failed", exc_info=result)
                cut(send)


async def _farewell(receive: Receive) -> None:
    while not (await receive())["type"].endswith(".disconnect"):
        pass


async def _serve_events(scope: Scope, send: Send) -> None:
    admission = await _admitted(scope)
    if isinstance(admission, HttpResponse):
        await _respond(admission, send)
        return
    head = {"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS}
    if admission.by_token:  # the token is the credential: no page gains anything by being another
        head["headers"] = [*STREAM_HEADERS, (b"Access-Control-Allow-Origin", b"*")]
    await send(head)
    if scope["method"] != "HEAD":
        # Some servers hold the head back until there is a body.
        await send({"type": "http.response.body", "body": b"", "more_body": True})
        async with _tail(admission) as batches:
            with paced(send) as paced_send:
                async for batch in batches:
                    await paced_send(_body(batch))
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _serve_socket(scope: Scope, send: Send, stops: asyncio.Event) -> None:
    admission = await _admitted(scope)
    if isinstance(admission, HttpResponse):
        code = _CLOSE_CODES.get(admission.status_code, CLOSED_TRY_AGAIN)
        await send({"type": "websocket.close", "code": code})
        return
    obeying = asyncio.ensure_future(_obey(stops, admission))
    try:
        async with _tail(admission) as batches:
            with paced(send) as paced_send:
                async for batch in batches:
                    for text in _texts(batch):
                        await paced_send({"type": "websocket.send", "text": text})
    finally:
        obeying.cancel()
    await send({"type": "websocket.close", "code": CLOSED_AT_THE_END})


async def _admitted(scope: Scope) -> Admission | HttpResponse:
    """Who asks, and for what; waits a while for a database that is away, then answers 503."""
    backoff = db.Backoff(first=0.1, most=1.0)
    try:
        async with asyncio.timeout(ADMISSION_SECONDS):
            while True:
                try:
                    admission: Admission | HttpResponse = await db.in_thread(admit, scope)
                except db.DATABASE_TROUBLE:
                    await asyncio.sleep(backoff.next())
                else:
                    return admission
    except TimeoutError:
        return _answer(Unavailable())
    except Exception:
        logger.exception("a stream could not be opened")
        return _answer(APIException("The stream could not be opened."))


def _answer(error: APIException) -> HttpResponse:
    body = {"detail": str(error.detail), "code": error.get_codes()}
    wait = getattr(error, "wait", None)
    headers = {"Retry-After": str(wait)} if wait else {}
    return JsonResponse(body, status=error.status_code, headers=headers)


async def _obey(stops: asyncio.Event, admission: Admission) -> None:
    """Stop the run when the client asks for it and may; while the database is away, try again."""
    backoff = db.Backoff()
    while admission.may_stop and await stops.wait():
        try:
            await db.in_thread(stop_run, admission.run_id)
        except db.DATABASE_TROUBLE:
            await asyncio.sleep(backoff.next())
        except Exception:
            logger.exception("run %s could not be stopped", admission.run_id)
            return
        else:
            stops.clear()


async def _respond(response: HttpResponse, send: Send) -> None:
    headers = [(name.encode(), value.encode()) for name, value in response.items()]
    body = response.content
    await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def _tail(admission: Admission) -> contextlib.aclosing[AsyncGenerator[Batch, None]]:
    # Closed with the stream, not when the collector gets to it: until then it counts as a viewer.
    return contextlib.aclosing(tail(admission.run_id, admission.after))


def _body(batch: Batch) -> Message:
    body = b": keepalive\n\n" if batch == KEEPALIVE else b"".join(map(_sse, batch))
    return {"type": "http.response.body", "body": body, "more_body": True}


def _sse(frame: Frame) -> bytes:
    return b"id: %d\ndata: %s\n\n" % (frame.seq, frame.json.encode())


def _texts(batch: Batch) -> list[str]:
    return ['{"type": "keepalive"}'] if batch == KEEPALIVE else [frame.json for frame in batch]


def _asks_for_stop(message: Message) -> bool:
    if message["type"] != "websocket.receive":
        return False
    try:
        asked = json.loads(message.get("text") or "null")
    except (ValueError, RecursionError):
        return False
    return isinstance(asked, dict) and asked.get("type") == "stop"


def header(scope: Scope, name: bytes) -> str:
    values = [value for key, value in scope["headers"] if key == name]
    return b",".join(values).decode("latin-1")


def is_allowed_origin(origin: str) -> bool:
    """A browser names the page's origin, and it must be an allowed host; others name none."""
    if not origin:
        return True
    try:
        host, _ = split_domain_port(urlsplit(origin).netloc)
    except ValueError:
        return False
    return bool(host) and validate_host(host, allowed_hosts())


@cache
def _django() -> Any:
    return get_asgi_application()
