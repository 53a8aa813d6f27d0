"""What the page of one run shows beside its fields."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ..models import AgentRun, Message, RunEvent
from ..text import bounded, span
from ..why import explain
from .answers import open_question

EVENTS = 200
"""The last rows of the journal that the page shows."""
MESSAGES = 50
"""The last messages of the transcript that the page shows."""
PAYLOAD_CHARS = 2000


@dataclass(frozen=True, slots=True)
class Step:
    """One moment of the run's life, and the time since the one before."""

    name: str
    moment: datetime
    later: str


def timeline(run: AgentRun) -> list[Step]:
    """Queued, ready, started, first event, stop, beat, end: those that were, in order."""
    first = (
        RunEvent.objects.filter(run_id=run.pk, seq__gt=3)
        .order_by("seq")
        .values_list("created_at", flat=True)
        .first()
    )
    moments = [
        ("Queued", run.created_at),
        ("May start", run.ready_at),
        ("Started", run.started_at),
        ("First event", first),
        ("Stop asked for", run.stop_requested_at),
        ("Last beat", run.last_heartbeat_at),
        ("Ended", run.finished_at),
        ("Journal trimmed", run.trimmed_at),
    ]
    if not run.has_ended:
        moments.insert(6, ("Lease until", run.claim_expires_at))
    known = sorted(((name, at) for name, at in moments if at), key=lambda step: step[1])
    return [
        Step(name, at, span((at - known[max(0, place - 1)][1]).total_seconds()) if place else "")
        for place, (name, at) in enumerate(known)
    ]


def compact(payload: Any) -> str:
    return json.dumps(payload, ensure_ascii=False)


def journal(run: AgentRun, *, after: int | None, words: bool) -> list[dict[str, Any]]:
    """The last events, or those after a seq, oldest first; payloads hold people's words."""
    events = RunEvent.objects.filter(run_id=run.pk)
    if after is not None:
        events = events.filter(seq__gt=after)
    newest = list(events.order_by("-seq")[:EVENTS])
    return [
        {
            "seq": event.seq,
            "type": event.type,
            "created_at": event.created_at,
            "payload": bounded(compact(event.payload), PAYLOAD_CHARS) if words else None,
        }
        for event in reversed(newest)
    ]


def transcript(conversation_id: Any) -> list[Message]:
    """The last messages of the conversation, oldest first."""
    said = Message.objects.filter(conversation_id=conversation_id)
    return list(reversed(said.transcript().reverse()[:MESSAGES]))


def context(run: AgentRun, *, words: bool, traceback: bool) -> dict[str, Any]:
    """All of it, as far as the reader may see it."""
    return {
        "run": run,
        "reason": explain(run.pk),
        "timeline": timeline(run),
        "journal": journal(run, after=None, words=words),
        "journal_most": EVENTS,
        "transcript": transcript(run.conversation_id) if words else None,
        "question": open_question(run) if words else None,
        "traceback": run.traceback if traceback else "",
        "may_read_words": words,
        "may_read_traceback": traceback,
        "retries": list(run.retries.order_by("attempt").only("pk", "status", "attempt")),
    }
