"""The WebSocket transport of AI SDK 7: any number of chats' streams over one socket.

Each frame of the client is a request of its own, with the credentials of the handshake and those of
its `headers`. An abort, or a socket that closes, drops a viewer; the run goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncGenerator
from typing import Any

from django.http import HttpResponse
from rest_framework.request import Request
from rest_framework.response import Response

from ... import db
from ...admission import request_of
from ...consumers import Message, Receive, Scope, Send, header, is_allowed_origin
from ...models import AgentRun
from ...pace import paced
from ...shutdown import cut_off_at_shutdown
from ..wires import WireView, events, sentence
from .chat import WIRE, chat_id_of, running, start
from .fold import Chunk, Fold

logger = logging.getLogger(__name__)

MAX_REQUESTS = 50
"""How many streams one socket carries at a time."""
ADMISSION_SECONDS = 10.0
"""How long a request waits for a database that is away."""
CLOSED_BAD_FRAME = 4400
_TAKEN_HEADERS = ("authorization", "x-api-key", "idempotency-key")

Frame = dict[str, Any]


class FrameView(WireView):
    """Answers one frame: through the project's authentication, permissions and throttles."""

    frame: Frame
    run: AgentRun | None = None

    def post(self, request: Request) -> Response:
        body = {**self.frame["body"], **self.frame}
        self.find_conversation(WIRE, chat_id_of(body.get("id")))
        self.run = start(request.user, body, request.headers.get("Idempotency-Key"))
        return Response()

    def get(self, request: Request) -> Response:
        conversation = self.find_conversation(WIRE, chat_id_of(self.frame.get("id")))
        self.run = running(conversation) if conversation else None
        return Response()


async def chat_socket(scope: Scope, receive: Receive, send: Send) -> None:
    """`ws/chat/`: the `url` of a `WebSocketChatTransport`."""
    await receive()  # websocket.connect
    if not is_allowed_origin(header(scope, b"origin")):
        await send({"type": "websocket.close"})  # before accepting: a 403
        return
    await send({"type": "websocket.accept"})
    task = asyncio.current_task()
    assert task is not None
    with cut_off_at_shutdown(task), paced(send) as paced_send:
        async with _requests(scope, paced_send) as requests:
            while (message := await receive())["type"] != "websocket.disconnect":
                if not requests.hear(message):
                    await send({"type": "websocket.close", "code": CLOSED_BAD_FRAME})
                    return


@contextlib.asynccontextmanager
async def _requests(scope: Scope, send: Send) -> AsyncGenerator[Requests, None]:
    requests = Requests(scope, send)
    try:
        yield requests
    finally:
        await requests.drop()


class Requests:
    """The requests of one socket, each in a task of its own."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope = scope
        self._send = send
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def hear(self, message: Message) -> bool:
        """Take a frame of the client; False where it is none of this transport's."""
        frame = _parsed(message.get("text"))
        if frame is None:
            return False
        request_id = frame["requestId"]
        if frame["type"] == "abort":
            if request_id in self._tasks:
                self._tasks[request_id].cancel()
        elif request_id not in self._tasks:
            task = asyncio.ensure_future(self._serve(frame, len(self._tasks) >= MAX_REQUESTS))
            self._tasks[request_id] = task
            task.add_done_callback(lambda _: self._tasks.pop(request_id, None))
        return True

    async def drop(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, frame: Frame, is_too_many: bool) -> None:
        try:
            if is_too_many:
                words = f"This socket has {MAX_REQUESTS} requests under way; wait for one to end."
                await self._answer(frame, "error", errorText=words)
            else:
                await self._admit(frame)
        except OSError:
            return  # the client has left
        except Exception:
            logger.exception("a request of a chat's socket failed")
            await self._answer(frame, "error", errorText="The server could not answer.")

    async def _admit(self, frame: Frame) -> None:
        found = await _asked(self._scope, frame)
        if isinstance(found, str):
            await self._answer(frame, "error", errorText=found)
        elif found is None:
            await self._answer(frame, "no-active")
        else:
            await self._stream(frame, found)

    async def _stream(self, frame: Frame, run: AgentRun) -> None:
        await self._answer(frame, "start")
        fold, sequence = Fold(run.pk, run.reply_message_id), 0
        async with contextlib.aclosing(events(run.pk)) as batches:
            async for batch in batches:
                for chunk in _chunks(fold, batch or []):
                    await self._answer(frame, "chunk", sequence=sequence, chunk=chunk)
                    sequence += 1
        await self._answer(frame, "end")

    async def _answer(self, frame: Frame, type_: str, **fields: Any) -> None:
        answer = {"type": type_, "requestId": frame["requestId"], **fields}
        await self._send({"type": "websocket.send", "text": json.dumps(answer)})


def _chunks(fold: Fold, batch: list[Frame]) -> list[Chunk]:
    return [chunk for event in batch for chunk in fold(event)]


def _parsed(text: str | None) -> Frame | None:
    try:
        frame = json.loads(text or "null")
    except (ValueError, RecursionError):
        return None
    known = isinstance(frame, dict) and frame.get("type") in ("send", "resume", "abort")
    return frame if known and isinstance(frame.get("requestId"), str) else None


async def _asked(scope: Scope, frame: Frame) -> AgentRun | str | None:
    """The run to stream, None where the chat is idle, or the words of a refusal.

    Asked again while the database is away: a message that was taken is known by its id.
    """
    backoff = db.Backoff(first=0.1, most=1.0)
    try:
        async with asyncio.timeout(ADMISSION_SECONDS):
            while True:
                try:
                    found: AgentRun | str | None = await db.in_thread(ask, scope, frame)
                except db.DATABASE_TROUBLE:
                    await asyncio.sleep(backoff.next())
                else:
                    return found
    except TimeoutError:
        return "The database cannot be reached; try again."


def ask(scope: Scope, frame: Frame) -> AgentRun | str | None:
    """Have a frame answered as a request to this socket's address."""
    given = frame.get("headers") or {}
    body = frame.get("body") or {}
    if not isinstance(given, dict) or not isinstance(body, dict):
        return "headers and body must be objects."
    headers = [
        (name.lower().encode(), value.encode())
        for name, value in given.items()
        if name.lower() in _TAKEN_HEADERS and isinstance(value, str)
    ]
    taken = {name for name, _ in headers}
    rest = [(name, value) for name, value in scope["headers"] if name not in taken]
    request = request_of({**scope, "headers": [*rest, *headers]})
    request.method = "POST" if frame["type"] == "send" else "GET"
    # What CSRF checks are for, the check of the handshake's Origin has done.
    request._dont_enforce_csrf_checks = True  # type: ignore[attr-defined]
    view = FrameView()
    view.frame = {**frame, "body": body}
    view.setup(request)
    response: HttpResponse = view.dispatch(request)  # type: ignore[assignment]
    if response.status_code >= 400:
        return sentence(getattr(response, "data", None))
    return view.run
