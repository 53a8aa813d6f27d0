"""What LangGraph's clients build from the frames, and that every cursor leads to the rest."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agentruns.contrib.langgraph.fold import MODES, Fold, Frame

from .journals import REPLY, RUN, Event, journals, patient, text_of

HISTORY = [{"type": "human", "id": "1", "content": "Hi"}]


def frames_of(journal: list[Event], modes: Any = MODES) -> list[Frame]:
    fold = Fold(str(RUN), str(REPLY), list(modes))
    fold.history = HISTORY
    return [frame for event in journal for frame in fold(event)]


def chunks_of(frames: list[Frame]) -> list[dict[str, Any]]:
    return [
        data[0]
        for *_, name, data in frames
        if name == "messages" and data[0]["type"] == "AIMessageChunk"
    ]


@patient
@given(journals(), st.sets(st.sampled_from(MODES)))
def test_ids_rise_and_are_the_same_whatever_modes_are_asked_for(
    journal: list[Event], modes: set[str]
) -> None:
    every = frames_of(journal)
    some = frames_of(journal, modes)
    ids = [(seq, k) for seq, k, *_ in every]

    assert ids == sorted(set(ids))
    assert [frame for frame in every if frame in some] == some
    assert every == frames_of(journal)


@patient
@given(journals())
def test_metadata_comes_first_and_the_end_last(journal: list[Event]) -> None:
    names = [name for *_, name, _ in frames_of(journal, ())]
    failed = journal[-1]["status"] == "failed"

    assert names == ["metadata", *(["error"] if failed else []), "end"]


@patient
@given(journals())
def test_the_pieces_make_the_message_of_the_last_state(journal: list[Event]) -> None:
    frames = frames_of(journal)
    chunks = chunks_of(frames)
    state = [data for *_, name, data in frames if name == "values"][-1]["messages"]
    said = [message for message in state if message["type"] == "ai"]
    pieces = [piece for chunk in chunks for piece in chunk["tool_call_chunks"]]
    starts = [piece for piece in pieces if piece["id"]]

    assert state[: len(HISTORY)] == HISTORY
    assert {chunk["id"] for chunk in chunks} <= {str(REPLY)}
    assert "".join(chunk["content"] for chunk in chunks) == text_of(journal)
    assert len(said) <= 1
    for message in said:
        assert message["content"] == text_of(journal)
        assert [call["id"] for call in message["tool_calls"]] == [piece["id"] for piece in starts]
    finished = {event["call_id"] for event in journal if event["type"] == "tool_call_finished"}
    assert {message["tool_call_id"] for message in state if message["type"] == "tool"} == finished


def test_arguments_come_once_whether_streamed_or_not() -> None:
    started = {"type": "tool_call_started", "call_id": "c", "name": "t", "arguments": None}
    whole = {"type": "tool_call_arguments", "call_id": "c", "arguments": {"q": 1}}
    piece = {"type": "tool_call_delta", "call_id": "c", "delta": '{"q": 1}'}

    for journal in ([started, whole], [started, piece, whole]):
        frames = frames_of([{**event, "seq": n} for n, event in enumerate(journal)])
        pieces = [piece for chunk in chunks_of(frames) for piece in chunk["tool_call_chunks"]]
        assert json.loads("".join(piece["args"] for piece in pieces)) == {"q": 1}


def test_a_failure_has_the_text_so_far_and_says_why() -> None:
    error = {"code": "worker_lost", "message": "Lost."}
    journal: list[Event] = [
        {"type": "content_delta", "stream": "text", "delta": "so far", "seq": 3},
        {"type": "complete", "status": "failed", "error": error, "seq": 4},
    ]

    frames = frames_of(journal, ["values"])

    assert [name for *_, name, _ in frames] == ["metadata", "values", "error", "end"]
    assert frames[1][3]["messages"][-1]["content"] == "so far"
    assert frames[2][3] == {"error": "worker_lost", "message": "Lost."}
