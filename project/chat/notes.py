"""The text that the demo's assistant searches."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

NOTES = Path(__file__).with_name("notes.txt")
COMMON = {
    "and",
    "are",
    "does",
    "for",
    "has",
    "how",
    "that",
    "the",
    "was",
    "what",
    "when",
    "who",
    "why",
}


def search(question: str, limit: int = 2) -> list[str]:
    """Return the paragraphs that share most words with the question, the best first."""
    asked = _words(question)
    scored = [(len(asked & _words(paragraph)), paragraph) for paragraph in paragraphs()]
    best = sorted(scored, key=lambda pair: pair[0], reverse=True)[:limit]
    return [paragraph for score, paragraph in best if score]


@cache
def paragraphs() -> tuple[str, ...]:
    """All of the notes, in order."""
    return tuple(NOTES.read_text().strip().split("\n\n"))


def _words(text: str) -> set[str]:
    found = re.findall(r"[a-z]{3,}", text.lower())
    return {word.rstrip("s") for word in found if word not in COMMON}
