"""The test site, in which what `FAULT` names raises every other time that it is called."""

from __future__ import annotations

import itertools
import os
from importlib import import_module
from typing import Any

from .asgi import application as application  # loads the apps

_HOMES = {"read_page": "tail", "read_pages": "reader", "_body": "consumers"}
_calls = itertools.count()

fault = os.environ["FAULT"]
home = import_module(f"agentruns.{_HOMES[fault]}")
real = getattr(home, fault)


def faulty(*args: Any, **kwargs: Any) -> Any:
    if next(_calls) % 2 == 0:
        raise LookupError("injected")
    return real(*args, **kwargs)


setattr(home, fault, faulty)
