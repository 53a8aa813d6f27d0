"""The part of a journal that is in memory: numbering, merging, sealing."""

from __future__ import annotations

import json
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentruns.journal import FIRST_SEQ, MAX_DELTA_CHARS, MAX_EVENT_CHARS, RunJournal
from agentruns.text import repair

TEXT, REASONING = ("content_delta", "stream", "text"), ("reasoning_delta", "stream", "reasoning")
TOOL = ("tool_call_delta", "call_id", "c1")


@pytest.fixture
def journal() -> RunJournal:
    return RunJournal(uuid4())


def seen(journal: RunJournal) -> list[tuple[int, str, dict[str, object]]]:
    return [(row.seq, row.type, json.loads(row.payload)) for row in journal.seal()]


def test_consecutive_deltas_of_one_stream_are_one_row(journal: RunJournal) -> None:
    for piece in ("Hel", "lo"):
        journal.delta(*TEXT, piece)
    journal.delta(*REASONING, "hm")
    journal.delta(*TEXT, "!")

    assert seen(journal) == [
        (4, "content_delta", {"stream": "text", "delta": "Hello"}),
        (5, "reasoning_delta", {"stream": "reasoning", "delta": "hm"}),
        (6, "content_delta", {"stream": "text", "delta": "!"}),
    ]


def test_an_event_closes_the_delta_before_it(journal: RunJournal) -> None:
    journal.delta(*TEXT, "before")
    seq = journal.add("progress", {"percent": 40})
    journal.delta(*TEXT, "after")

    assert seq == 5
    assert [row[1] for row in seen(journal)] == ["content_delta", "progress", "content_delta"]


def test_what_was_sealed_never_changes(journal: RunJournal) -> None:
    journal.delta(*TEXT, "sealed")
    sealed = journal.seal()
    journal.delta(*TEXT, " later")

    again = journal.seal()

    assert again[: len(sealed)] == sealed
    assert [row.seq for row in again] == [4, 5]


def test_rows_that_are_stored_are_not_sealed_again(journal: RunJournal) -> None:
    journal.delta(*TEXT, "one")
    rows = journal.seal()
    journal.add("progress", {})

    journal.stored(rows)

    assert journal.stored_to == FIRST_SEQ
    assert [row.seq for row in journal.seal()] == [5]


def test_only_the_first_event_of_a_run_does_not_wait(journal: RunJournal) -> None:
    assert journal.delta(*TEXT, "first") is True
    assert journal.delta(*TEXT, "second") is False


def test_the_size_of_what_waits_goes_back_to_nothing(journal: RunJournal) -> None:
    journal.delta(*TEXT, "x" * 1000)
    assert journal.waiting_chars == 1000

    journal.stored(journal.seal())

    assert journal.waiting_chars == 0


def test_a_long_text_is_split_into_rows_of_bounded_size(journal: RunJournal) -> None:
    journal.delta(*TEXT, "x" * (MAX_DELTA_CHARS * 2 + 10))

    rows = [json.loads(row.payload)["delta"] for row in journal.seal()]

    assert max(map(len, rows)) <= MAX_DELTA_CHARS
    assert "".join(rows) == "x" * (MAX_DELTA_CHARS * 2 + 10)


def test_an_event_that_json_cannot_carry_leaves_no_gap(journal: RunJournal) -> None:
    journal.delta(*TEXT, "a")
    with pytest.raises(ValueError, match="event 'bad'"):
        journal.add("bad", {"x": float("nan")})
    with pytest.raises(ValueError, match="event 'huge' has"):
        journal.add("huge", {"x": "y" * MAX_EVENT_CHARS})
    journal.add("good", {})

    assert [row[0] for row in seen(journal)] == [4, 5]


def test_a_pair_split_over_deltas_is_joined_and_a_lone_half_is_written_at_the_end(
    journal: RunJournal,
) -> None:
    journal.delta(*TEXT, "a\ud83d")
    journal.delta(*TEXT, "\ude00b\ud83d")
    journal.finish()

    text = "".join(str(payload["delta"]) for _, _, payload in seen(journal))

    assert text == "a😀b\ufffd"
    assert journal.reply.content == text


STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from([TEXT, REASONING, TOOL]), st.text(max_size=5)),
        st.just("seal"),
        st.just("event"),
    ),
    max_size=40,
)


@given(STEPS)
def test_seqs_have_no_gap_and_each_stream_is_its_deltas(steps: list[object]) -> None:
    journal, stored = RunJournal(uuid4()), []
    said: dict[str, str] = {}
    for step in steps:
        match step:
            case "seal":
                rows = journal.seal()
                if rows:
                    journal.stored(rows)
                stored += rows
            case "event":
                journal.add("progress", {})
            case ((type_, key, name), text):
                journal.delta(type_, key, name, text)
                said[type_] = said.get(type_, "") + text
    journal.finish()
    stored += journal.seal()

    assert [row.seq for row in stored] == list(range(FIRST_SEQ, FIRST_SEQ + len(stored)))
    assert journal.next_seq == FIRST_SEQ + len(stored)
    for type_, text in said.items():
        deltas = [json.loads(row.payload)["delta"] for row in stored if row.type == type_]
        assert "".join(deltas) == repair(text)
    assert journal.reply.content == repair(said.get("content_delta", ""))
