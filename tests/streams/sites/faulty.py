"""The test site, where every other read of a journal fails, and `unsendable` text is not sent."""

from __future__ import annotations

import itertools
from typing import Any

from .asgi import application as application  # loads the apps

from agentruns import consumers, reader, tail  # isort: skip


def every_other_time(home: Any, name: str) -> None:
    real, calls = getattr(home, name), itertools.count()

    def failing(*args: Any) -> Any:
        if next(calls) % 2 == 0:
            raise LookupError("injected")
        return real(*args)

    setattr(home, name, failing)


def refusing(batch: Any, real: Any = consumers._body) -> Any:
    if "unsendable" in str(batch):
        raise LookupError("injected")
    return real(batch)


every_other_time(tail, "read_page")
every_other_time(reader, "read_pages")
consumers._body = refusing
