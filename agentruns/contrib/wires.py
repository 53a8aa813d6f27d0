"""What the other wires share: the keys that their clients send, their own ids, and the stream.

A wire is a pure fold over a run's journal, from its first row: no clock, no counter of the process,
so that every process writes the same frames for the same rows, and a client may come back to any.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from typing import Any
from uuid import UUID

from django.http import StreamingHttpResponse
from rest_framework.authentication import BaseAuthentication, TokenAuthentication
from rest_framework.request import Request

from ..models import Conversation
from ..owned import owned
from ..shutdown import cut_off_at_shutdown
from ..tail import follow
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

    def get_authenticators(self) -> list[Any]:
        project = super().get_authenticators()
        return [*project, KeyAuthentication(project)]


def find_conversation(user: Any, wire: str, client_id: str) -> Conversation | None:
    """The user's conversation that a client of this wire knows under its own id."""
    return owned(Conversation, user).filter(client_id=f"{wire}:{client_id}").first()


def open_conversation(user: Any, wire: str, client_id: str, **fields: Any) -> Conversation:
    """The same, opened where there is none; another user's equal id is another conversation."""
    conversation, _ = Conversation.objects.get_or_create(
        user_id=user.pk, client_id=f"{wire}:{client_id}", defaults=fields
    )
    return conversation  # type: ignore[no-any-return]


def stream(
    run_id: UUID, fold: Fold, *, headers: dict[str, str] | None = None
) -> StreamingHttpResponse:
    """The run's whole journal through `fold`, as server-sent events, until the run's end.

    Needs ASGI. The frames are written as they are; a comment keeps a silent stream open.
    """
    response = StreamingHttpResponse(_frames(run_id, fold), content_type="text/event-stream")
    response["Cache-Control"] = "no-cache, no-transform"
    response["X-Accel-Buffering"] = "no"
    response["Content-Encoding"] = "identity"  # GZipMiddleware leaves it alone
    for name, value in (headers or {}).items():
        response[name] = value
    return response


async def _frames(run_id: UUID, fold: Fold) -> AsyncGenerator[bytes, None]:
    task = asyncio.current_task()
    assert task is not None
    with cut_off_at_shutdown(task):
        async with contextlib.aclosing(events(run_id)) as batches:
            async for batch in batches:
                yield b": keepalive\n\n" if batch is None else _joined(fold, batch)


def _joined(fold: Fold, batch: list[Event]) -> bytes:
    return "".join(frame for event in batch for frame in fold(event)).encode()


async def events(run_id: UUID) -> AsyncGenerator[list[Event] | None, None]:
    """The run's events from the first, in batches, as on the native wire; None after a silence."""
    async with contextlib.aclosing(follow(run_id, 0)) as batches:
        async for batch in batches:
            yield None if isinstance(batch, str) else [json.loads(frame.json) for frame in batch]


def sse(data: Any, *, event: str | None = None, id: str | None = None) -> str:  # noqa: A002
    """One server-sent event: LF only, its JSON ASCII on one line. Some clients split at more."""
    head = (f"id: {id}\n" if id else "") + (f"event: {event}\n" if event else "")
    return f"{head}data: {json.dumps(data)}\n\n"


def _key_of(request: Request) -> str | None:
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key.strip():
        return key.strip()
    return request.headers.get("x-api-key") or None


@contextlib.contextmanager
def _header(request: Request, authorization: str) -> Iterator[None]:
    meta = request._request.META
    before = meta.get("HTTP_AUTHORIZATION")
    meta["HTTP_AUTHORIZATION"] = authorization
    try:
        yield
    finally:
        if before is None:
            del meta["HTTP_AUTHORIZATION"]
        else:
            meta["HTTP_AUTHORIZATION"] = before
