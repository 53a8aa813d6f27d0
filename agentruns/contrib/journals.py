"""A whole journal, for folds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ..events import read_page
from ..models import AgentRun, Message

PAGE = 1000

Event = dict[str, Any]


def read_events(run: AgentRun) -> list[Event]:
    """The run's events up to now; where its journal was trimmed, those that tell as much as the
    rows still do.
    """
    events: list[Event] = []
    after, more = 0, True
    while more:
        page = read_page(run.pk, after, PAGE)
        if page is None:
            raise AgentRun.DoesNotExist(f"Run {run.pk} does not exist.")
        events += [json.loads(frame.json) for frame in page.frames]
        after, more = page.cursor, len(page.frames) >= PAGE
    return list(restored(run, events))


def restored(run: AgentRun, events: list[Event]) -> Iterator[Event]:
    """The events, with a trimmed journal's told again from the reply: its tool calls, its text.

    Their seqs stay below that of `complete`: the journal had a row for each, at least.
    """
    if len(events) != 1 or not events[0].get("trimmed"):
        yield from events
        return
    reply = Message.objects.filter(pk=run.reply_message_id).first()
    lost = list(_told_again(run, reply))
    for seq, event in enumerate(lost, start=1):
        yield {**event, "seq": seq}
    yield {**events[0], "seq": max(events[0]["seq"], len(lost) + 1)}


def _told_again(run: AgentRun, reply: Message | None) -> Iterator[Event]:
    yield {"type": "user_message_created", "message_id": str(run.user_message_id)}
    yield {"type": "run_queued", "run_id": str(run.pk)}
    if run.started_at is not None:
        yield {"type": "run_started", "attempt": run.attempt}
    if reply is None:
        return
    for part in reply.parts:
        if part.get("type") != "tool_call":
            continue
        call = {"call_id": part["call_id"], "name": part.get("name", "")}
        yield {"type": "tool_call_started", **call, "arguments": part.get("arguments")}
        if outcome := {key: part[key] for key in ("result", "error") if key in part}:
            yield {"type": "tool_call_finished", **call, **outcome}
    if reply.content:
        yield {"type": "content_delta", "stream": "text", "delta": reply.content}
