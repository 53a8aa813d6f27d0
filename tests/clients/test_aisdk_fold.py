"""What the AI SDK's client insists on, for any journal."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given

from agentruns.contrib.aisdk.fold import Chunk, Fold
from agentruns.contrib.aisdk.views import framed

from .journals import REPLY, RUN, Event, journals, patient, text_of

ENDS = {"completed": "finish", "failed": "error", "cancelled": "abort"}


def chunks_of(journal: list[Event]) -> list[Chunk]:
    fold = Fold(RUN, REPLY)
    return [chunk for event in journal for chunk in fold(event)]


@patient
@given(journals())
def test_every_part_is_opened_once_and_closed_before_the_end(journal: list[Event]) -> None:
    chunks = chunks_of(journal)
    opened: set[str] = set()
    closed: set[str] = set()
    for chunk in chunks:
        match chunk["type"].rsplit("-", 1):
            case [("text" | "reasoning"), "start"]:
                assert chunk["id"] not in opened
                opened.add(chunk["id"])
            case [("text" | "reasoning"), "delta"]:
                assert chunk["id"] in opened - closed
            case [("text" | "reasoning"), "end"]:
                assert chunk["id"] in opened - closed
                closed.add(chunk["id"])

    assert opened == closed
    assert chunks[0]["type"] == "start"
    assert chunks[-1]["type"] == ENDS[journal[-1]["status"]]
    assert chunks[0]["messageId"] == str(REPLY)


@patient
@given(journals())
def test_every_call_has_input_before_its_output_and_does_not_stay_open(
    journal: list[Event],
) -> None:
    state: dict[str, str] = {}
    after = {
        "tool-input-start": {None: "streaming"},
        "tool-input-delta": {"streaming": "streaming"},
        "tool-input-available": {"streaming": "available"},
        "tool-input-error": {"streaming": "ended"},
        "tool-output-available": {"available": "ended"},
        "tool-output-error": {"available": "ended"},
    }
    for chunk in chunks_of(journal):
        if "toolCallId" in chunk:
            before = state.get(chunk["toolCallId"])
            state[chunk["toolCallId"]] = after[chunk["type"]][before]  # type: ignore[index]

    assert set(state.values()) <= {"ended"}


@patient
@given(journals())
def test_text_and_reasoning_are_the_journals(journal: list[Event]) -> None:
    chunks = chunks_of(journal)

    def said(kind: str) -> str:
        return "".join(chunk["delta"] for chunk in chunks if chunk["type"] == f"{kind}-delta")

    assert said("text") == text_of(journal)
    assert said("reasoning") == text_of(journal, "reasoning_delta")


@patient
@given(journals())
def test_no_optional_field_is_null(journal: list[Event]) -> None:
    free = ("input", "output", "data", "messageMetadata")
    for chunk in chunks_of(journal):
        assert all(value is not None for name, value in chunk.items() if name not in free)


@patient
@given(journals())
def test_frames_are_ascii_on_one_line_each(journal: list[Event]) -> None:
    write = framed(Fold(RUN, REPLY))
    frames = [frame for event in journal for frame in write(event)]

    assert frames[-1] == "data: [DONE]\n\n"
    for frame in frames:
        assert frame.isascii()
        assert len(frame.splitlines()) == 2
        assert frame.endswith("\n\n")
        assert frame == "data: [DONE]\n\n" or json.loads(frame.removeprefix("data: "))


def test_a_call_is_shown_as_the_servers_own() -> None:
    call: dict[str, Any] = {"call_id": "c", "name": "search"}
    journal: list[Event] = [
        {"type": "tool_call_started", **call, "arguments": {"q": "x"}},
        {"type": "tool_call_finished", **call, "result": None},
    ]
    own = {"toolCallId": "c", "dynamic": True, "providerExecuted": True}

    assert chunks_of(journal) == [
        {"type": "tool-input-start", "toolName": "search", **own},
        {"type": "tool-input-available", "toolName": "search", "input": {"q": "x"}, **own},
        {"type": "tool-output-available", "output": None, **own},
    ]


def test_usage_is_added_up() -> None:
    journal = [
        {"type": "usage", "seq": 4, "input_tokens": 1, "output_tokens": 2},
        {"type": "usage", "seq": 5, "input_tokens": 10, "output_tokens": True, "model": "x"},
    ]

    told = [chunk["messageMetadata"]["usage"] for chunk in chunks_of(journal)]

    # The client keeps the last.
    assert told == [
        {"input_tokens": 1, "output_tokens": 2},
        {"input_tokens": 11, "output_tokens": 2},
    ]


def test_a_question_is_a_part_of_its_own() -> None:
    asked = {"key": "1", "question": {"go": "on?"}}

    assert chunks_of(
        [{"type": "input_required", **asked}, {"type": "run_resumed", "attempt": 1}]
    ) == [{"type": "data-input_required", "data": asked}]
