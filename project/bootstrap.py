"""Set up what the project needs, with nothing but Python's standard library."""

from __future__ import annotations


def ensure_dependencies() -> None:
    """Return in an environment that has the dependencies."""
