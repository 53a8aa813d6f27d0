"""The set-up without a network: what it says, and that it goes where it should."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from project import bootstrap

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A copy of the project as git would lay it, without an environment."""
    for name in ("agentruns", "project"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for name in ("manage.py", "pyproject.toml", "uv.lock", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


@pytest.fixture
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python of this version that has no package at all."""
    place = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    return place / "bin" / "python"


def manage(
    python: Path, clone: Path, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, "manage.py", *arguments],
        cwd=clone,
        env={"PATH": os.environ["PATH"], "HOME": os.fspath(clone), **environment},
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_this_environment_lacks_nothing() -> None:
    assert bootstrap.missing_distributions(everything=True) == []


def test_a_release_that_is_too_old_counts_as_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    demands = '[project]\ndependencies = ["django>=99.1", "channels>=4.2"]\n'
    demands += "[project.optional-dependencies]\ndev = []\n"
    (tmp_path / "pyproject.toml").write_text(demands)
    monkeypatch.setattr(bootstrap, "ROOT", tmp_path)

    assert bootstrap.missing_distributions(everything=True) == ["django>=99.1"]


def test_a_ready_environment_takes_over_with_the_same_arguments(
    clone: Path, bare_python: Path
) -> None:
    ready = clone / ".venv" / "bin"
    ready.mkdir(parents=True)
    (ready / "python").write_text('#!/bin/sh\necho "taken over: $*"\n')
    (ready / "python").chmod(0o755)
    key = "from project import bootstrap; print(bootstrap._key())"
    found = subprocess.run([sys.executable, "-c", key], cwd=clone, capture_output=True, text=True)
    (clone / ".venv" / "agentruns-ready").write_text(found.stdout.strip())

    done = manage(bare_python, clone, "test", "-k", "two words")

    assert done.stdout == "taken over: manage.py test -k two words\n"
    assert done.stderr == ""


def test_without_a_network_the_set_up_ends_in_one_sentence(clone: Path, bare_python: Path) -> None:
    closed = {"HTTPS_PROXY": "http://127.0.0.1:9", "PIP_RETRIES": "0"}

    done = manage(bare_python, clone, "check", **closed)

    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("The package index can't be reached")
    assert not (clone / ".venv" / "agentruns-ready").exists()


def test_an_environment_of_somebody_elses_that_is_broken_is_left_alone(
    clone: Path, bare_python: Path
) -> None:
    theirs = clone / ".venv" / "precious"
    theirs.parent.mkdir()
    theirs.touch()

    done = manage(bare_python, clone, "check")

    assert done.returncode == 1
    assert "remove it and try again" in done.stderr
    assert theirs.exists()
