"""Read the demo project's configuration from environment variables."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path

from agentruns.conf import Config

PREFIX = "AGENTRUNS_"


def agentruns_settings(environment: Mapping[str, str]) -> dict[str, object]:
    """Return what `AGENTRUNS_<KEY>` variables say; an empty value means None."""
    return {
        key.name: _value(environment[PREFIX + key.name], key.default)
        for key in fields(Config)
        if PREFIX + key.name in environment
    }


def secret_key(file: Path) -> str:
    """Return the key kept in `file`, made on first use; all processes of a demo share it."""
    with suppress(OSError):
        file.parent.mkdir(exist_ok=True)
        with suppress(FileExistsError):
            file.touch(mode=0o600, exist_ok=False)
            file.write_text(secrets.token_urlsafe(48))
        if kept := file.read_text():
            return kept
    return secrets.token_urlsafe(48)


def _value(text: str, default: object) -> object:
    if text == "":
        return None
    if not isinstance(default, int | float):
        return text
    for number in (int, float):
        with suppress(ValueError):
            return number(text)
    return text  # the system check names the key and what it holds
