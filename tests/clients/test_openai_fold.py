"""What OpenAI's clients insist on, and that every cursor leads to the rest of the stream."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from agentruns.contrib.openai.fold import STRIDE, Fold, Frame

from .journals import RUN, Event, journals, patient, text_of

FACTS = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1.5,
    "model": "agent",
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "metadata": {},
}


def new_fold() -> Fold:
    return Fold(RUN.hex, FACTS)


def frames_of(journal: list[Event]) -> list[Frame]:
    fold = new_fold()
    return [frame for event in journal for frame in fold(event)]


def numbers(frames: list[Frame]) -> list[int]:
    return [frame["sequence_number"] for frame in frames]


def accumulated(frames: list[Frame]) -> list[dict[str, Any]]:
    """The output as a client builds it from deltas, which must find what they belong to."""
    output: list[dict[str, Any]] = []
    for frame in frames:
        match frame["type"]:
            case "response.output_item.added":
                assert frame["output_index"] == len(output)
                output.append({"item": frame["item"], "text": "", "parts": 0, "done": None})
            case "response.content_part.added" | "response.reasoning_summary_part.added":
                output[frame["output_index"]]["parts"] += 1
            case "response.output_text.delta" | "response.reasoning_summary_text.delta":
                assert output[frame["output_index"]]["parts"] == 1
                add(output, frame)
            case "response.function_call_arguments.delta":
                add(output, frame)
            case "response.output_item.done":
                assert output[frame["output_index"]]["done"] is None
                output[frame["output_index"]]["done"] = frame["item"]
    return output


def add(output: list[dict[str, Any]], frame: Frame) -> None:
    built = output[frame["output_index"]]
    assert built["done"] is None
    assert built["item"]["id"] == frame["item_id"]
    built["text"] += frame["delta"]


def text_in(item: dict[str, Any]) -> str:
    return {
        "message": lambda: item["content"][0]["text"],
        "reasoning": lambda: item["summary"][0]["text"],
        "function_call": lambda: item["arguments"],
        "function_call_output": lambda: item["output"],
    }[item["type"]]()


@patient
@given(journals())
def test_numbers_rise_and_come_from_the_rows_alone(journal: list[Event]) -> None:
    frames = frames_of(journal)

    assert numbers(frames) == sorted(set(numbers(frames)))
    assert {number // STRIDE for number in numbers(frames)} <= {event["seq"] for event in journal}
    assert frames == frames_of(journal)
    assert frames[0]["type"] == "response.created"
    assert not any("error" in frame for frame in frames)  # a client raises at the sight of it


@patient
@given(journals())
def test_a_client_builds_the_output_that_the_end_holds(journal: list[Event]) -> None:
    frames = frames_of(journal)
    final = frames[-1]["response"]["output"]
    built = accumulated(frames)

    assert [item["id"] for item in final] == [entry["item"]["id"] for entry in built]
    for item, entry in zip(final, built, strict=True):
        if item["type"] in ("message", "reasoning"):
            assert entry["text"] == text_in(item)
        if item["type"] in ("message", "reasoning") or item["status"] == "completed":
            assert entry["done"] == item
    said = [text_in(item) for item in final if item["type"] == "message"]
    assert "".join(said) == text_of(journal)
    assert len({item["id"] for item in final}) == len(final)


@patient
@given(journals())
def test_every_snapshot_is_of_its_own_moment(journal: list[Event]) -> None:
    fold = new_fold()
    kept = [(frame, repr(frame)) for event in journal for frame in fold(event)]

    assert all(repr(frame) == then for frame, then in kept)
    assert kept[-1][0]["response"] == fold.response


@pytest.mark.parametrize(
    ("status", "type_"),
    [
        ("completed", "response.completed"),
        ("failed", "response.failed"),
        ("cancelled", "response.incomplete"),
    ],
)
def test_the_end_says_how_it_was(status: str, type_: str) -> None:
    error = {"code": "worker_lost", "message": "Lost."} if status == "failed" else None
    journal: list[Event] = [
        {"type": "content_delta", "stream": "text", "delta": "so far", "seq": 3},
        {"type": "complete", "status": status, "error": error, "seq": 4},
    ]

    final = frames_of(journal)[-1]

    assert (final["type"], final["response"]["status"]) == (type_, status)
    assert text_in(final["response"]["output"][0]) == "so far"
    is_whole = status == "completed"
    assert final["response"]["output"][0]["status"] == ("completed" if is_whole else "incomplete")
    if error:
        words = {"code": "server_error", "message": "Lost. (worker_lost)"}
        assert final["response"]["error"] == words


def test_many_open_calls_at_the_end_stay_within_the_rows_numbers() -> None:
    calls: list[Event] = [
        {"type": "tool_call_started", "call_id": str(n), "name": "t", "arguments": None, "seq": n}
        for n in range(1, 200)
    ]
    end: Event = {"type": "complete", "status": "failed", "error": None, "seq": 200}

    frames = frames_of([*calls, end])

    assert frames[-1]["sequence_number"] < 201 * STRIDE
    assert {item["status"] for item in frames[-1]["response"]["output"]} == {"incomplete"}


def test_usage_is_added_up_in_full() -> None:
    journal: list[Event] = [
        {"type": "usage", "input_tokens": 1, "output_tokens": 2, "cached_tokens": 1, "seq": 3},
        {"type": "usage", "input_tokens": 10, "output_tokens": True, "cost": "x", "seq": 4},
        {"type": "complete", "status": "completed", "error": None, "seq": 5},
    ]

    usage = frames_of(journal)[-1]["response"]["usage"]

    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (11, 2, 13)
    assert usage["input_tokens_details"] == {"cached_tokens": 1, "cache_write_tokens": 0}
