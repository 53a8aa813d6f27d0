"""Clients from PyPI, which the extra `clients` pins."""

from __future__ import annotations

import importlib
import os
from typing import Any

import pytest


def needed(name: str) -> Any:
    """The package; without it the file's tests are skipped, or fail where all must be here."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        reason = f"{name} is not installed: uv sync --extra dev --extra clients"
    if os.environ.get("AGENTRUNS_REQUIRE_ALL"):
        pytest.fail(f"{reason}, and AGENTRUNS_REQUIRE_ALL is set", pytrace=False)
    return pytest.skip(reason, allow_module_level=True)
