"""What the other wires share: the keys that their clients send, their own ids, and the stream.

A wire is a pure fold over a run's journal, from its first row: no clock, no counter of the process,
so that every process writes the same frames for the same rows, and a client may come back to any.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from typing import Any
from uuid import UUID

from django.core.handlers.asgi import ASGIRequest
from django.http import StreamingHttpResponse
from rest_framework.authentication import BaseAuthentication, TokenAuthentication
from rest_framework.request import Request

from .. import db
from ..errors import NoStreamHere
from ..events import MAX_SEQ
from ..models import AgentRun, Conversation, Message
from ..owned import owned
from ..shutdown import cut_off_at_shutdown
from ..stop import stop_conversation
from ..tail import tail
from ..text import unstorable
from ..views.api import ApiView

Event = dict[str, Any]
Fold = Callable[[Event], Iterable[str]]
"""Takes the events of one run in order, each as on the native wire; gives the frames of each."""


class KeyAuthentication(BaseAuthentication):
    """`Authorization: Bearer KEY` and `x-api-key: KEY`, as clients of other wires send them.

    Stands behind the project's own classes and asks each of those that take a key (whose `keyword`
    opens the header, as in `TokenAuthentication`) about this one.
    """

    def __init__(self, project: Iterable[BaseAuthentication]) -> None:
        self._keyed = [each for each in project if isinstance(each, TokenAuthentication)]

    def authenticate(self, request: Request) -> tuple[Any, Any] | None:
        key = _key_of(request)
        for authenticator in self._keyed if key else ():
            with _header(request, f"{authenticator.keyword} {key}"):
                if (found := authenticator.authenticate(request)) is not None:
                    return found
        return None


class WireView(ApiView):
    """A view of another wire: the project's authentication, and keys as that wire sends them."""

    schema = None  # type: ignore[assignment]
    """A wire of its own: it is not part of the API's document."""

    def get_authenticators(self) -> list[Any]:
        project = super().get_authenticators()
        return [*project, KeyAuthentication(project)]

    def find_conversation(self, wire: str, client_id: str) -> Conversation | None:
        """The user's conversation of that id, as far as the project's permissions show it."""
        conversation = find_conversation(self.request.user, wire, client_id)
        if conversation is not None:
            self.check_object_permissions(self.request, conversation)
        return conversation


def find_conversation(user: Any, wire: str, client_id: str) -> Conversation | None:
    """The user's conversation that a client of this wire knows under its own id."""
    if unstorable(client_id):
        return None
    return owned(Conversation, user).filter(client_id=f"{wire}:{client_id}").first()


def open_conversation(user: Any, wire: str, client_id: str, **fields: Any) -> Conversation:
    """The same, opened where there is none; another user's equal id is another conversation."""
    conversation, _ = Conversation.objects.get_or_create(
        user_id=user.pk, client_id=f"{wire}:{client_id}", defaults=fields
    )
    return conversation  # type: ignore[no-any-return]


def stop(conversation: Conversation) -> dict[str, list[str]]:
    """Stop all of a conversation; ids of the runs that never start, and that are asked to end."""
    stopped = stop_conversation(conversation)
    return {
        "cancelled": [str(run_id) for run_id in stopped.cancelled],
        "stopping": [str(run_id) for run_id in stopped.stopping],
    }


def client_key(wire: str, *parts: str) -> str:
    """An idempotency key made of ids that the client minted, unlike any that a client sends."""
    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    return f"{wire}:{digest}"


def check_streams(request: Request) -> None:
    """Raise 406 under WSGI, where a stream would hold a thread and never be cut."""
    if not isinstance(request._request, ASGIRequest):
        raise NoStreamHere("This server has no streams (WSGI); serve it by ASGI.", "no_stream")


def interrupt_id(run_id: str, key: str) -> str:
    """Names a question among all that a conversation ever had."""
    return f"{run_id}:{key}"


def settled_seq(run: AgentRun) -> int:
    """Up to which seq the run's questions are open no longer."""
    return MAX_SEQ if run.has_ended else run.answered_seq or 0


def stream(
    run_id: UUID,
    fold: Fold,
    *,
    headers: dict[str, str] | None = None,
    until_question: int | None = None,
) -> StreamingHttpResponse:
    """The run's whole journal through `fold`, as server-sent events, until the run's end, or as
    `events` says."""

    def write(batch: list[Event]) -> Iterator[str]:
        return (frame for event in batch for frame in fold(event))

    return stream_batches(run_id, write, headers=headers, until_question=until_question)


def stream_batches(
    run_id: UUID,
    write: Callable[[list[Event]], Iterable[str]],
    *,
    headers: dict[str, str] | None = None,
    until_question: int | None = None,
) -> StreamingHttpResponse:
    """As `stream`, for what is written of a batch as a whole.

    Needs ASGI. The frames are written as they are; a comment keeps a silent stream open.
    """
    return streamed(_frames(events(run_id, until_question), write), "text/event-stream", headers)


def streamed(
    body: AsyncGenerator[bytes, None], content_type: str, headers: dict[str, str] | None = None
) -> StreamingHttpResponse:
    """A response of this body, as it comes: nothing on the way is to hold it back."""
    response = StreamingHttpResponse(body, content_type=content_type)
    response["Cache-Control"] = "no-cache, no-transform"
    response["X-Accel-Buffering"] = "no"
    response["Content-Encoding"] = "identity"  # GZipMiddleware leaves it alone
    for name, value in (headers or {}).items():
        response[name] = value
    return response


async def _frames(
    batches: AsyncGenerator[list[Event] | None, None],
    write: Callable[[list[Event]], Iterable[str]],
) -> AsyncGenerator[bytes, None]:
    task = asyncio.current_task()
    assert task is not None
    with cut_off_at_shutdown(task):
        await db.release_thread()
        yield b""  # some servers hold the head back until there is a body
        async with contextlib.aclosing(batches):
            async for batch in batches:
                yield b": keepalive\n\n" if batch is None else "".join(write(batch)).encode()


async def events(
    run_id: UUID, until_question: int | None = None
) -> AsyncGenerator[list[Event] | None, None]:
    """The run's events from the first, in batches, as on the native wire; None after a silence.

    They end with the run; with `until_question`, also with the first question behind that seq.
    A run whose journal was trimmed has its events made from its reply: what was said stays.
    """
    async with contextlib.aclosing(tail(run_id, 0)) as batches:
        async for batch in batches:
            if isinstance(batch, str):
                yield None
                continue
            rows = [json.loads(frame.json) for frame in batch]
            if rows and rows[0].get("trimmed"):
                rows = [*await _remembered(run_id, rows[0]["message_id"]), *rows]
            asked = None if until_question is None else _first_question(rows, until_question)
            yield rows if asked is None else rows[: asked + 1]
            if asked is not None:
                return


def _first_question(rows: list[Event], behind: int) -> int | None:
    """The index of the first question behind that seq."""
    for index, row in enumerate(rows):
        if row["type"] == "input_required" and row["seq"] > behind:
            return index
    return None


def sentence(data: Any) -> str:
    """The words of an error's JSON."""
    if isinstance(data, dict) and isinstance(data.get("detail"), str):
        return str(data["detail"])
    if isinstance(data, dict) and data:
        field, messages = next(iter(data.items()))
        return f"{field}: {messages[0] if isinstance(messages, list) and messages else messages}"
    return json.dumps(data)


def sse(data: Any, *, event: str | None = None, id: str | None = None) -> str:  # noqa: A002
    """One server-sent event: LF only, its JSON ASCII on one line. Some clients split at more."""
    head = (f"id: {id}\n" if id else "") + (f"event: {event}\n" if event else "")
    return f"{head}data: {json.dumps(data)}\n\n"


async def _remembered(run_id: UUID, message_id: str | None) -> list[Event]:
    backoff = db.Backoff(first=0.1, most=2.0)
    while True:
        try:
            reply = await db.in_thread(_find_reply, message_id)
        except db.DATABASE_TROUBLE:
            await asyncio.sleep(backoff.next())
        else:
            return events_of(run_id, reply)


def _find_reply(message_id: str | None) -> Message | None:
    return Message.objects.filter(pk=message_id).first() if message_id else None


def events_of(run_id: UUID, reply: Message | None) -> list[Event]:
    """A journal that says what the reply says, `complete` left out: tool calls, then the text."""
    rows: list[Event] = [{"type": "user_message_created"}]
    rows.append({"type": "run_queued", "run_id": str(run_id)})
    if reply is not None:
        rows.append({"type": "run_started", "attempt": 1})
        for part in reply.parts:
            rows.extend(_call_events(part))
        if reply.content:
            rows.append({"type": "content_delta", "stream": "text", "delta": reply.content})
    return [{**row, "seq": seq} for seq, row in enumerate(rows, start=1)]


def _call_events(part: dict[str, Any]) -> Iterator[Event]:
    call = {"call_id": part["call_id"], "name": part.get("name", "")}
    yield {"type": "tool_call_started", "arguments": part.get("arguments"), **call}
    outcome: Event = {name: part[name] for name in ("result", "error") if name in part}
    if outcome:
        yield {"type": "tool_call_finished", **call, **outcome}


def _key_of(request: Request) -> str | None:
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key.strip():
        return key.strip()
    return request.headers.get("x-api-key") or None


@contextlib.contextmanager
def _header(request: Request, authorization: str) -> Iterator[None]:
    django = request._request
    before = django.META.get("HTTP_AUTHORIZATION")
    django.META["HTTP_AUTHORIZATION"] = authorization
    django.__dict__.pop("headers", None)  # read from META once, then cached
    try:
        yield
    finally:
        if before is None:
            del django.META["HTTP_AUTHORIZATION"]
        else:
            django.META["HTTP_AUTHORIZATION"] = before
        django.__dict__.pop("headers", None)
