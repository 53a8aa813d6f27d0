"""The assistant with a real model: here pydantic-ai's own offline one, through the whole demo."""

from __future__ import annotations

from pathlib import Path

import pytest

from .test_demo import clone as clone
from .test_demo import start_demo

pytest.importorskip("pydantic_ai", reason="pydantic-ai is not installed")


def test_a_model_answers_with_the_demos_tools(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEMO_MODEL", "test")  # calls every tool once, then says what they returned
    monkeypatch.setenv("AGENTRUNS_DEFAULT_AGENT", "model")
    demo = start_demo(clone, "--once", "What is a lease?")

    reply, progress = demo.communicate(timeout=110)

    assert demo.returncode == 0, progress
    assert "[search " in progress
    assert "[calculator " in progress
    assert "only +, -, * and / are known" in reply
