"""Text and JSON that PostgreSQL can store.

Text from a model may hold anything; NUL and lone surrogates have no place in `text` or `jsonb` and
become U+FFFD. Text from a client is refused instead: nobody should find another text than the one
that was sent.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from typing import Any, TypeGuard
from uuid import UUID

MAX_NAME_CHARS = 200

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_ESCAPED_UNSTORABLE = re.compile(r"\\u(?:0000|d[89a-f][0-9a-f]{2})")
_HIGH = "\ud800", "\udbff"


def unstorable(text: str) -> str | None:
    """The first character that PostgreSQL cannot store, as `U+0000`; None where all is well."""
    found = _UNSTORABLE.search(text)
    return f"U+{ord(found.group()):04X}" if found else None


def repair(text: str) -> str:
    """The text with surrogate pairs joined, and with NUL and lone surrogates as U+FFFD."""
    if not _UNSTORABLE.search(text):
        return text
    joined = _PAIR.sub(
        lambda pair: pair.group().encode("utf-16-le", "surrogatepass").decode("utf-16-le"), text
    )
    return _UNSTORABLE.sub("\ufffd", joined)


def split_half(text: str) -> tuple[str, str]:
    """The text without a trailing high surrogate, and that half: its other half may open the next
    delta.
    """
    if text and _HIGH[0] <= text[-1] <= _HIGH[1]:
        return text[:-1], text[-1]
    return text, ""


_COMPACT = json.JSONEncoder(allow_nan=False, separators=(",", ":"))
"""One for all: `json.dumps` makes another for each value."""


def encode(value: Any, what: str) -> str:
    """The value as compact ASCII JSON, its texts repaired.

    Raises `ValueError` naming `what` where JSON cannot carry the value: NaN, infinities, bytes,
    datetimes, cycles, nesting past the interpreter's limit.
    """
    try:
        encoded = _COMPACT.encode(value)
        if _ESCAPED_UNSTORABLE.search(encoded):
            encoded = _COMPACT.encode(_repaired(value))
    except (TypeError, ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ValueError(f"{what} cannot be written as JSON: {reason}") from None
    return encoded


def check_exact(encoded: str, value: Any, what: str) -> None:
    """Raise `ValueError` naming `what` unless `encode` gave the value as it is."""
    if json.loads(encoded) != json.loads(json.dumps(value)):
        raise ValueError(
            f"{what} contains U+0000 or a lone surrogate, which cannot be stored; remove it"
        )


def size_of(encoded: str) -> int:
    """Characters of what `encode` gave, each escaped one counted as the one that it is: a limit is
    the same for every script.
    """
    return len(json.dumps(json.loads(encoded), ensure_ascii=False, separators=(",", ":")))


def _repaired(value: Any) -> Any:
    match value:
        case str():
            return repair(value)
        case dict():
            return {
                repair(key) if isinstance(key, str) else key: _repaired(item)
                for key, item in value.items()
            }
        case list() | tuple():
            return [_repaired(item) for item in value]
        case _:
            return value


def array(values: Iterable[UUID | str | int | None]) -> str:
    """The values as the text of a PostgreSQL array.

    psycopg writes each text of a list by way of a regular expression; that was a third of a
    worker's CPU.
    """
    return f"{{{','.join(map(_item, values))}}}"


def _item(value: UUID | str | int | None) -> str:
    match value:
        case None:
            return "NULL"
        case str():
            escaped = value.replace("\\", "\\\\").replace('"', '\\"')
            return f'"{escaped}"'
        case UUID():
            return value.hex
    return str(value)


def check_name(name: Any, what: str) -> None:
    """Raise `ValueError` naming `what` unless it can name a step or a question."""
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME_CHARS or unstorable(name):
        raise ValueError(
            f"{what} is a storable text of 1 to {MAX_NAME_CHARS} characters, not {name!r}"
        )


def is_number(value: Any) -> TypeGuard[float]:
    """Whether it is a number of JSON; Python's booleans are integers as well."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def fingerprint(value: Any) -> str:
    """A digest that is equal for values that are equal as JSON."""
    plain = json.loads(json.dumps(value, allow_nan=False), parse_float=_number)
    canonical = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _number(text: str) -> float:
    """The number, as an int where it is whole: JSON does not tell 1.0 from 1."""
    number = float(text)
    return int(number) if number.is_integer() else number


def bounded(text: str, limit: int) -> str:
    """The text, or its two ends where it is longer than `limit` characters."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"


def span(seconds: float) -> str:
    """A length of time for people: `8 s`, `3 min 5 s`, `2 h 10 min`, `3 d 4 h`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    for large, small, size in (("d", "h", 86400), ("h", "min", 3600), ("min", "s", 60)):
        if whole >= size:
            part = whole % size // {"h": 3600, "min": 60, "s": 1}[small]
            return f"{whole // size} {large}" + (f" {part} {small}" if part else "")
    raise AssertionError(whole)
