"""A whole journal at once, for folds."""

from __future__ import annotations

import json

from ..events import read_page
from ..models import AgentRun, Message
from .wires import Event, events_of

PAGE = 1000


def read_events(run: AgentRun) -> list[Event]:
    """The run's events up to now, as a stream of another wire has them."""
    found: list[Event] = []
    after, more = 0, True
    while more:
        page = read_page(run.pk, after, PAGE)
        if page is None:
            raise AgentRun.DoesNotExist(f"Run {run.pk} does not exist.")
        found += [json.loads(frame.json) for frame in page.frames]
        after, more = page.cursor, len(page.frames) >= PAGE
    if found and found[0].get("trimmed"):
        reply = Message.objects.filter(pk=run.reply_message_id).first()
        return [*events_of(run.pk, reply), *found]
    return found
