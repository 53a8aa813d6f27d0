"""Answer when a run has ended, or asks a person, to clients that hold their request open until
then.

A JSON text may begin with white space: spaces keep the connection alive. Neither a thread nor a
database connection waits along.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any
from uuid import UUID

from django.http import StreamingHttpResponse

from .. import db
from ..conf import get_config
from ..events import MAX_SEQ
from ..models import AgentRun
from ..shutdown import cut_off_at_shutdown
from ..tail import KEEPALIVE, tail
from .wires import streamed

logger = logging.getLogger(__name__)

Compose = Callable[[], Any]
"""Makes the answer, in a thread, from a run that has ended or waits."""


def answer_at_end(
    run_id: UUID,
    compose: Compose,
    *,
    settled: int = MAX_SEQ,
    headers: dict[str, str] | None = None,
) -> StreamingHttpResponse:
    """200 at once, and what `compose` returns as JSON when the run has ended, or asks a question
    behind the seq `settled`. Needs ASGI."""
    return streamed(_body(run_id, compose, settled), "application/json", headers)


async def _body(run_id: UUID, compose: Compose, settled: int) -> AsyncGenerator[bytes, None]:
    task = asyncio.current_task()
    assert task is not None
    with cut_off_at_shutdown(task):
        await db.release_thread()
        yield b" "  # some servers hold the head back until there is a body
        silence, spoke = get_config().KEEPALIVE_SECONDS, time.monotonic()
        # From beyond every end, only the end itself is told.
        async with contextlib.aclosing(tail(run_id, settled)) as batches:
            async for batch in batches:
                if batch == KEEPALIVE or time.monotonic() - spoke >= silence:
                    yield b" "
                    spoke = time.monotonic()
                if batch != KEEPALIVE and any(frame.type == "input_required" for frame in batch):
                    break
        async with contextlib.aclosing(answered(compose)) as answers:
            async for answer in answers:
                yield b" " if answer is None else json.dumps(answer[0]).encode()


async def answered(compose: Compose) -> AsyncGenerator[tuple[Any] | None, None]:
    """What `compose` returns, in a tuple; None before that for each try without a database."""
    backoff = db.Backoff(first=0.2, most=2.0)
    while True:
        try:
            answer = (await db.in_thread(compose),)
        except db.DATABASE_TROUBLE:
            yield None
            await asyncio.sleep(backoff.next())
        except AgentRun.DoesNotExist:
            yield (None,)  # deleted while the client waited
            return
        except Exception:
            # Nothing may escape a body: daphne would leave the client hanging.
            logger.exception("the answer to a client that waited could not be made")
            yield (None,)
            return
        else:
            yield answer
            return
