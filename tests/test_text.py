"""Text and JSON that PostgreSQL can store."""

from __future__ import annotations

import datetime
import json
import math
from uuid import uuid4

import pytest
from django.db import connection
from hypothesis import given
from hypothesis import strategies as st

from agentruns.text import array, bounded, encode, fingerprint, repair, split_half, unstorable

ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()), max_size=30)


@pytest.mark.parametrize(
    ("text", "repaired"),
    [
        ("plain", "plain"),
        ("a\0b", "a\ufffdb"),
        ("\ud83d", "\ufffd"),
        ("\ude00\ud83d", "\ufffd\ufffd"),
        ("\ud83d\ude00", "😀"),
        ("x\ud83d\ude00\0y", "x😀\ufffdy"),
    ],
)
def test_text_is_repaired_and_pairs_are_joined(text: str, repaired: str) -> None:
    assert repair(text) == repaired


@given(ANY_TEXT)
def test_whatever_is_repaired_can_be_stored_and_stays_as_it_is(text: str) -> None:
    repaired = repair(text)

    assert unstorable(repaired) is None
    repaired.encode()  # raises on a lone surrogate
    assert repair(repaired) == repaired


@given(ANY_TEXT)
def test_storable_text_is_left_alone(text: str) -> None:
    if unstorable(text) is None:
        assert repair(text) == text


@given(st.lists(ANY_TEXT, max_size=6))
def test_pieces_joined_over_their_halves_are_the_repaired_whole(pieces: list[str]) -> None:
    half, out = "", []
    for piece in pieces:
        whole, half = split_half(half + piece)
        out.append(repair(whole))
    out.append(repair(half))

    assert "".join(out) == repair("".join(pieces))


def test_what_cannot_be_stored_is_named() -> None:
    assert unstorable("a\0") == "U+0000"
    assert unstorable("\udfff") == "U+DFFF"
    assert unstorable("fine \u2028 😀") is None


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (math.nan, "Out of range float"),
        (math.inf, "Out of range float"),
        ({"at": datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)}, "datetime"),
        ({"raw": b"bytes"}, "bytes"),
        ({1, 2}, "set"),
    ],
)
def test_a_value_that_json_cannot_carry_is_an_error_that_names_the_event(
    value: object, reason: str
) -> None:
    with pytest.raises(ValueError, match=rf"event 'x' cannot be written as JSON: .*{reason}"):
        encode(value, "event 'x'")


def test_a_cycle_and_a_value_nested_too_deeply_are_errors_too() -> None:
    cycle: list[object] = []
    cycle.append(cycle)
    deep: list[object] = []
    for _ in range(50_000):
        deep = [deep]

    for value in (cycle, deep):
        with pytest.raises(ValueError, match="event 'x' cannot be written as JSON"):
            encode(value, "event 'x'")


def test_texts_inside_a_value_are_repaired_keys_too() -> None:
    value = {"a\0": ["\ud800", {"b": "x\ud83d\ude00"}], "c": ("\0",)}

    assert json.loads(encode(value, "x")) == {"a\ufffd": ["\ufffd", {"b": "x😀"}], "c": ["\ufffd"]}


def test_a_text_that_looks_like_an_escape_is_left_alone() -> None:
    assert json.loads(encode({"a": "\\u0000 \\ud800"}, "x")) == {"a": "\\u0000 \\ud800"}


def test_encoded_json_is_ascii_on_one_line() -> None:
    encoded = encode({"a": "\u2028\u0085\n😀"}, "x")

    assert encoded.isascii()
    assert len(encoded.splitlines()) == 1


def test_equal_as_json_is_an_equal_fingerprint() -> None:
    assert fingerprint({"a": 1, "b": [1, 2]}) == fingerprint({"b": [1, 2], "a": 1})
    assert fingerprint({"a": 1}) != fingerprint({"a": 2})
    assert fingerprint({"a": None}) != fingerprint({})


def test_a_long_text_keeps_its_two_ends() -> None:
    text = "a" * 50 + "b" * 1000 + "c" * 50

    short = bounded(text, 100)

    assert short.startswith("a" * 50)
    assert short.endswith("c" * 50)
    assert "1000 characters left out" in short
    assert bounded("short", 100) == "short"


@pytest.mark.django_db
def test_an_array_arrives_as_it_was() -> None:
    ids = [uuid4(), None]
    texts = ["plain", "", "NULL", "null", 'a "b" \\c', "{x,y}", " padded ", "😀\n", None]

    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT %s::uuid[], %s::text[], %s::int[]",
            [array(ids), array(texts), array([1, None, -2])],
        )
        assert cursor.fetchone() == (ids, texts, [1, None, -2])
