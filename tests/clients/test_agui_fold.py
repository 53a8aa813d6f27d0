"""What AG-UI's verifier insists on, and that attaching at any row gives the same messages."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentruns.contrib.agui.fold import Fold, Frame
from agentruns.contrib.agui.messages import Messages

from .journals import REPLY, Event, journals, patient, text_of

SPANS = {
    "TEXT_MESSAGE_START": ("text", "messageId", True),
    "TEXT_MESSAGE_CONTENT": ("text", "messageId", None),
    "TEXT_MESSAGE_END": ("text", "messageId", False),
    "REASONING_START": ("span", "messageId", True),
    "REASONING_END": ("span", "messageId", False),
    "REASONING_MESSAGE_START": ("reasoning", "messageId", True),
    "REASONING_MESSAGE_CONTENT": ("reasoning", "messageId", None),
    "REASONING_MESSAGE_END": ("reasoning", "messageId", False),
    "TOOL_CALL_START": ("call", "toolCallId", True),
    "TOOL_CALL_ARGS": ("call", "toolCallId", None),
    "TOOL_CALL_END": ("call", "toolCallId", False),
}


def new_fold() -> Fold:
    return Fold("thread", "run", REPLY)


def frames_of(journal: list[Event]) -> list[Frame]:
    fold = new_fold()
    return [frame for event in journal for frame in fold(event)]


def verify(frames: list[Frame]) -> None:
    """The rules of the client's verifier."""
    opened: set[tuple[str, str]] = set()
    for frame in frames:
        if frame["type"] not in SPANS:
            continue
        kind, name, opens = SPANS[frame["type"]]
        span = kind, frame[name]
        assert (span in opened) is not bool(opens), frame
        if opens is True:
            opened.add(span)
        elif opens is False:
            opened.remove(span)
    assert not opened
    assert frames[0] == {"type": "RUN_STARTED", "threadId": "thread", "runId": "run"}
    assert [frame["type"] for frame in frames].count("RUN_STARTED") == 1
    assert frames[-1]["type"] in ("RUN_FINISHED", "RUN_ERROR")


def applied(messages: Messages, frames: list[Frame]) -> list[Frame]:
    for frame in frames:
        messages.apply(frame)
    return list(messages)


@patient
@given(journals())
def test_the_verifier_is_content(journal: list[Event]) -> None:
    frames = frames_of(journal)

    verify(frames)
    assert all(frame["delta"] for frame in frames if "delta" in frame)


@patient
@given(journals(), st.data())
def test_attached_at_any_row_the_events_are_valid_and_nothing_is_missing_or_doubled(
    journal: list[Event], data: Any
) -> None:
    row = data.draw(st.integers(2, len(journal)))
    fold, messages = new_fold(), Messages()
    early = [frame for event in journal[:row] for frame in fold(event)]
    applied(messages, early)
    reopened = list(fold.reopened())
    late = [frame for event in journal[row:] for frame in fold(event)]
    ending = early[-1:] if row == len(journal) else []

    verify([early[0], *reopened, *late, *ending])
    assert applied(messages, late) == applied(Messages(), frames_of(journal))


@patient
@given(journals())
def test_messages_hold_the_journals_text_and_calls(journal: list[Event]) -> None:
    messages = applied(Messages(), frames_of(journal))
    said = [message.get("content", "") for message in messages if message["role"] == "assistant"]
    calls = [call["id"] for message in messages for call in message.get("toolCalls", ())]
    results = {message["toolCallId"] for message in messages if message["role"] == "tool"}

    assert "".join(said) == text_of(journal)
    assert calls == [event["call_id"] for event in journal if event["type"] == "tool_call_started"]
    assert results == {
        event["call_id"] for event in journal if event["type"] == "tool_call_finished"
    }
    assert len({message["id"] for message in messages}) == len(messages)


def test_a_stop_is_no_failure_and_a_failure_says_what_the_run_says() -> None:
    stopped = {"type": "complete", "status": "cancelled", "error": None}
    failed = {"type": "complete", "status": "failed", "error": {"code": "c", "message": "m"}}

    assert frames_of([stopped])[0] == {
        "type": "RUN_FINISHED",
        "threadId": "thread",
        "runId": "run",
        "outcome": {"type": "cancelled"},
        "result": {"status": "cancelled"},
    }
    assert frames_of([failed]) == [{"type": "RUN_ERROR", "message": "m", "code": "c"}]


@pytest.mark.parametrize("status", ["completed", "cancelled", "failed"])
def test_usage_is_added_up(status: str) -> None:
    journal: list[Event] = [
        {"type": "usage", "input_tokens": 1, "output_tokens": 2},
        {"type": "usage", "input_tokens": 10, "output_tokens": True, "cost": "x"},
        {"type": "complete", "status": status, "error": None},
    ]

    assert frames_of(journal)[-1]["usage"] == [{"inputTokens": 11, "outputTokens": 2}]


def test_a_question_ends_the_clients_run_with_all_closed_unless_it_is_settled() -> None:
    journal: list[Event] = [
        {"type": "run_queued", "run_id": "native", "seq": 2},
        {"type": "tool_call_started", "seq": 3, "call_id": "c", "name": "t", "arguments": None},
        {"type": "content_delta", "seq": 4, "stream": "text", "delta": "May I?"},
        {"type": "input_required", "seq": 5, "key": "1", "question": {"go": "on?"}},
    ]
    settled = Fold("thread", "run", REPLY, 5)

    frames = frames_of(journal)
    shared = [frame for event in journal for frame in settled(event)]

    metadata = {"key": "1", "question": {"go": "on?"}}
    interrupt = {"id": "native:1", "reason": "input_required", "metadata": metadata}
    assert frames[-1]["outcome"] == {"type": "interrupt", "interrupts": [interrupt]}
    assert frames[:-1] == shared
    assert {"type": "TOOL_CALL_END", "toolCallId": "c"} in shared
    assert list(settled.reopened()) == []
