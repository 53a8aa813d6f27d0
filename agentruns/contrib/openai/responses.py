"""Responses as the client sees them: ids, and a run's response from its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

from ...models import AgentRun
from ..journals import read_events
from ..wires import Event, sse
from .asked import WIRE
from .fold import Fold
from .items import Data


def response_id(run_id: UUID) -> str:
    return f"resp_{run_id.hex}"


def conversation_id(key: UUID) -> str:
    return f"conv_{key.hex}"


def message_id(key: UUID) -> str:
    return f"msg_{key.hex}"


def parse_id(prefix: str, text: Any) -> UUID | None:
    """The UUID in an id of this wire, or a UUID as it is; None where it is neither."""
    try:
        return UUID(str(text).removeprefix(f"{prefix}_"))
    except ValueError:
        return None


def fold_of(run: AgentRun) -> Fold:
    """The fold over this run's journal; it depends on what never changes of the row."""
    own = run.metadata.get(WIRE)
    own = own if isinstance(own, dict) else {}
    facts: Data = {
        "id": response_id(run.pk),
        "object": "response",
        "created_at": run.created_at.timestamp(),
        "model": run.agent,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "instructions": own.get("instructions"),
        "metadata": {name: value for name, value in run.metadata.items() if name != WIRE},
        "conversation": {"id": conversation_id(run.conversation_id)},
        "previous_response_id": own.get("previous_response_id"),
        "background": bool(own.get("background", True)),
    }
    return Fold(run.pk.hex, facts)


def response_of(run: AgentRun) -> Data:
    """The response as it stands."""
    fold = fold_of(run)
    for event in read_events(run):
        for _ in fold(event):
            pass
    return fold.response


def framed(fold: Fold, after: int = -1) -> Callable[[Event], Iterator[str]]:
    """The frames with a number above `after`, as server-sent events."""

    def frames(event: Event) -> Iterator[str]:
        for frame in fold(event):
            if frame["sequence_number"] > after:
                yield sse(frame, event=frame["type"])

    return frames
