"""Random journals that the engine could have written."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

Event = dict[str, Any]

patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""A busy machine is slow, which says nothing about a fold."""

RUN = UUID("01900000-0000-7000-8000-000000000001")
REPLY = UUID("01900000-0000-7000-8000-000000000002")

_texts = st.text('aé漢😀 {}"\\\n', max_size=8) | st.sampled_from(
    ["a\u2028b", "c\x85d", "e\x0bf", "\r\n\r\n", "data:"]
)
_values = st.none() | st.booleans() | st.integers() | _texts | st.lists(st.integers(), max_size=2)
_failure = {"code": "worker_lost", "message": "The worker was lost."}


@st.composite
def _call(draw: st.DrawFn, number: int) -> list[Event]:
    call_id = f"call-{number}"
    is_streamed = draw(st.booleans())
    arguments = None if is_streamed else {"q": draw(_values)}
    events: list[Event] = [
        {"type": "tool_call_started", "call_id": call_id, "name": "tool", "arguments": arguments}
    ]
    if is_streamed:
        for delta in draw(st.lists(_texts, max_size=3)):
            events.append({"type": "tool_call_delta", "call_id": call_id, "delta": delta})
        if draw(st.booleans()):
            events.append(
                {"type": "tool_call_arguments", "call_id": call_id, "arguments": {"q": 1}}
            )
    if draw(st.booleans()):
        outcome = draw(
            st.one_of(
                st.fixed_dictionaries({"result": _values}),
                st.just({"error": {"code": "tool_error", "message": "ValueError"}}),
            )
        )
        events.append({"type": "tool_call_finished", "call_id": call_id, "name": "tool", **outcome})
    return events


@st.composite
def _plain(draw: st.DrawFn) -> Event:
    kind = draw(st.sampled_from(["text", "text", "text", "notes", "reasoning", "usage", "custom"]))
    match kind:
        case "usage":
            return {"type": "usage", "input_tokens": 3, "output_tokens": draw(st.integers(0, 9))}
        case "custom":
            return {"type": "progress", "percent": draw(_values)}
        case "reasoning":
            return {"type": "reasoning_delta", "stream": "text", "delta": draw(_texts)}
        case stream:
            return {"type": "content_delta", "stream": stream, "delta": draw(_texts)}


@st.composite
def journals(draw: st.DrawFn) -> list[Event]:
    """The events of one run, from the first to `complete`; calls may overlap."""
    calls = [draw(_call(number)) for number in range(draw(st.integers(0, 3)))]
    lanes = [*calls, draw(st.lists(_plain(), max_size=8))]
    middle: list[Event] = []
    while lanes := [lane for lane in lanes if lane]:
        lane = draw(st.sampled_from(range(len(lanes))))
        middle.append(lanes[lane].pop(0))
    status = draw(st.sampled_from(["completed", "failed", "cancelled"]))
    error = _failure if status == "failed" else None
    rows = [
        {"type": "user_message_created", "message_id": str(RUN)},
        {"type": "run_queued", "run_id": str(RUN)},
        *([{"type": "run_started", "attempt": 1}, *middle] if draw(st.integers(0, 9)) else []),
        {"type": "complete", "status": status, "error": error, "message_id": str(REPLY)},
    ]
    return [{**row, "seq": seq} for seq, row in enumerate(rows, start=1)]


def text_of(journal: list[Event], kind: str = "content_delta") -> str:
    streams = (event for event in journal if event["type"] == kind and event["stream"] == "text")
    return "".join(event["delta"] for event in streams)
