"""A run's stream, from the cursor that the client has."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Any
from uuid import UUID

from django.http import StreamingHttpResponse

from ... import db
from ...shutdown import cut_off_at_shutdown
from ..waiting import answered
from ..wires import Event, events, sse, streamed
from .errors import Invalid
from .fold import Fold

Cursor = tuple[int, int]
"""Seq of a row, and index of a frame of it."""
START: Cursor = (-1, -1)
KEEPALIVE = b": keepalive\n\n"

_CURSOR = re.compile(r"([0-9]{1,18})-([0-9]{1,9})")


def parse_cursor(text: str | None) -> Cursor:
    """The cursor in a `Last-Event-ID`; absent and `-1` stand for the start."""
    if not text or text == "-1":
        return START
    found = _CURSOR.fullmatch(text)
    if found is None:
        raise Invalid("Last-Event-ID", "must be the id of a frame, like 12-0, or -1.")
    return int(found[1]), int(found[2])


def stream(
    run_id: UUID,
    fold: Fold,
    history: Callable[[], Any] | None,
    after: Cursor,
    settled: int,
    headers: dict[str, str],
) -> StreamingHttpResponse:
    """The frames after the cursor; `history` reads the thread as the run found it, and is None
    where no mode needs it; questions up to the seq `settled` end nothing. Needs ASGI."""
    body = _body(events(run_id, settled), fold, history, after)
    return streamed(body, "text/event-stream", headers)


async def _body(
    batches: AsyncGenerator[list[Event] | None, None],
    fold: Fold,
    history: Callable[[], Any] | None,
    after: Cursor,
) -> AsyncGenerator[bytes, None]:
    task = asyncio.current_task()
    assert task is not None
    with cut_off_at_shutdown(task):
        await db.release_thread()
        yield b""  # some servers hold the head back until there is a body
        async with contextlib.aclosing(batches):
            async for batch in batches:
                if batch is None:
                    yield KEEPALIVE
                    continue
                if history is not None and not fold.history and _begins(batch):
                    async with contextlib.aclosing(answered(history)) as answers:
                        async for answer in answers:
                            if answer is None:
                                yield KEEPALIVE
                            else:
                                fold.history = answer[0] or []
                yield "".join(_frames(fold, batch, after)).encode()


def _begins(batch: list[Event]) -> bool:
    # A turn's place in the thread is fixed when it starts, not before.
    return any(event["type"] in ("run_started", "complete") for event in batch)


def _frames(fold: Fold, batch: list[Event], after: Cursor) -> Iterable[str]:
    for event in batch:
        for seq, k, name, data in fold(event):
            if (seq, k) > after:
                yield sse(data, event=name, id=f"{seq}-{k}")
