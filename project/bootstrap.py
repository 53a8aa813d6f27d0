"""Set up what the project needs, with nothing but Python's standard library.

An environment that has the dependencies is used as it is. Otherwise `.venv` beside `manage.py` is
made (or brought up to date with `uv.lock`) and the command starts again in there. A set-up that was
interrupted leaves a mark: half-copied packages look installed, so the next command begins anew.
"""

from __future__ import annotations

import ctypes.util
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
READY = VENV / "agentruns-ready"
OURS = VENV / "made-by-manage.py"
UNFINISHED = VENV / "agentruns-unfinished"
LOCK = ROOT / ".cache" / "setup.lock"
AGAIN = "AGENTRUNS_SETUP_DONE"

TO_RUN = {"daphne", "dj-database-url"}
"""What every command needs from the extra `dev`, beside the package's own dependencies."""

NETWORK_TROUBLE = re.compile(
    r"NewConnectionError|NameResolutionError|ConnectTimeoutError|ReadTimeoutError|ProxyError|"
    r"name resolution|Connection refused|Network is unreachable|dns error|error sending request"
)
NOTHING_FOUND = re.compile(f"from versions: none|{NETWORK_TROUBLE.pattern}")
"""For a package that surely has a version."""


class SetupError(Exception):
    """The set-up can't go on; the message is one sentence that says what to do."""


def ensure_dependencies() -> None:
    """Return where the dependencies are importable; elsewhere set up and start again."""
    again = os.environ.pop(AGAIN, None)
    lacking = missing_distributions(everything=sys.argv[1:2] == ["test"])
    if not lacking and not _is_behind():
        return
    if again:
        sys.exit(f"{VENV} was set up, but lacks {', '.join(lacking)}: remove it and try again.")
    try:
        set_up()
    except SetupError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit("Interrupted; the next command takes up the set-up again.")
    os.environ[AGAIN] = "1"
    os.execv(PYTHON, [os.fspath(PYTHON), *sys.orig_argv[1:]])  # noqa: S606 - no shell wanted


def missing_distributions(*, everything: bool) -> list[str]:
    """Return the requirements of pyproject.toml that this environment doesn't meet."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extra = project["optional-dependencies"]["dev"]
    needed = project["dependencies"] + [
        requirement for requirement in extra if everything or _parts(requirement)[0] in TO_RUN
    ]
    lacking = [requirement for requirement in needed if not _is_met(*_parts(requirement))]
    compiled = _is_installed("psycopg-binary") or _is_installed("psycopg-c")
    if not compiled and not ctypes.util.find_library("pq"):
        lacking.append("psycopg[binary]")
    return lacking


def set_up() -> None:
    """Make `.venv` hold what uv.lock says; one process does it, others wait for it."""
    key = _key()
    with _only_one():
        if _is_ready(key) and PYTHON.exists():
            return
        _say(f"Setting up the project in {VENV} (once; about half a minute)")
        _make_environment()
        UNFINISHED.touch()
        _install()
        READY.write_text(key)
        UNFINISHED.unlink()
        _say("The project is set up")


def _is_behind() -> bool:
    """Say whether this is the `.venv` that we set up, and it isn't what uv.lock says now."""
    if Path(sys.prefix) != VENV:
        return False
    return UNFINISHED.exists() or (READY.exists() and not _is_ready(_key()))


def _is_ready(key: str) -> bool:
    return READY.exists() and READY.read_text() == key and not UNFINISHED.exists()


def _key() -> str:
    contents = [(ROOT / name).read_bytes() for name in ("uv.lock", "pyproject.toml")]
    return hashlib.sha256(b"".join(contents)).hexdigest()


def _parts(requirement: str) -> tuple[str, str]:
    name, _, minimum = requirement.partition(">=")
    return name.partition("[")[0], minimum


def _is_met(name: str, minimum: str) -> bool:
    return _is_installed(name) and _numbers(importlib.metadata.version(name)) >= _numbers(minimum)


def _is_installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


@contextmanager
def _only_one() -> Iterator[None]:
    try:
        LOCK.parent.mkdir(exist_ok=True)
        VENV.mkdir(exist_ok=True)
        lock = LOCK.open("a")
        if not os.access(VENV, os.W_OK):
            raise PermissionError
    except OSError:
        raise SetupError(
            f"{VENV} can't be written: copy the project to a folder of yours, or use an "
            "environment of yours in which 'pip install .[dev]' was run."
        ) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say(f"Another process is setting up {VENV}; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make_environment() -> None:
    if _works() and not UNFINISHED.exists():
        return
    if any(VENV.iterdir()) and not OURS.exists():
        raise SetupError(
            f"{VENV} is broken or has a Python older than 3.11: remove it and try again."
        )
    for leftover in VENV.iterdir():
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
    OURS.touch()
    # Debian ships ensurepip apart from Python, so the pip at hand installs into the environment.
    how = ["--without-pip"] if _pip_reaches_out() else []
    if how or importlib.util.find_spec("ensurepip"):
        code, output = _run([sys.executable, "-m", "venv", *how, os.fspath(VENV)])
    else:
        raise SetupError("Python has no pip: install it (Debian: apt-get install python3-pip).")
    if code != 0:
        raise SetupError(f"No virtual environment could be made in {VENV}: {_last(output)}")


def _works() -> bool:
    if not PYTHON.exists():
        return False
    return (
        _run([os.fspath(PYTHON), "-c", "import sys; sys.exit(sys.version_info < (3, 11))"])[0] == 0
    )


def _pip_reaches_out() -> bool:
    """Say whether this Python has a pip that can install into another environment."""
    return _is_met("pip", "22.3") and importlib.util.find_spec("pip") is not None


def _pip(*packages: str) -> tuple[int, list[str]]:
    pip = [os.fspath(PYTHON), "-m", "pip"]
    if _pip_reaches_out():
        pip = [sys.executable, "-m", "pip", "--python", os.fspath(PYTHON)]
    pip += ["install", "--quiet", "--no-input", "--disable-pip-version-check"]
    return _run([*pip, *packages])


def _install() -> None:
    _say("  installing uv, which installs the rest")
    code, output = _pip("--only-binary=uv", "uv", "pip")
    _check_network(output, code)
    if code == 0:
        _say("  installing the packages of uv.lock")
        uv = os.fspath(VENV / "bin" / "uv")
        sync = [uv, "sync", "--frozen", "--inexact", "--no-progress", "--extra", "dev"]
        code, output = _run(sync, show=True)
        _check_network(output, code)
    if code != 0:
        _say(f"  uv can't do it here ({_last(output)}): installing with pip, without the lock")
        code, output = _pip("-e", f"{ROOT}[dev]")
        _check_network(output, code, NOTHING_FOUND)
    if code != 0:
        raise SetupError(f"The packages could not be installed: {_last(output)}")


def _check_network(
    output: Sequence[str], code: int, trouble: re.Pattern[str] = NETWORK_TROUBLE
) -> None:
    if code != 0 and trouble.search("\n".join(output)):
        raise SetupError(
            "The package index can't be reached, and the set-up needs it once: "
            "check the network (or pip's index and proxy settings) and try again."
        )


def _run(command: Sequence[str], *, show: bool = False) -> tuple[int, list[str]]:
    """Run a program; return its exit code and its lines, shown as they come if asked for."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        cwd=ROOT,
        env=_environment(),
    )
    lines = []
    with process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.rstrip())
            if show and not re.match(r" [+~-] |\s*Downloaded|warning:", line):
                _say(f"    {line.strip()}")
    return process.returncode, lines


def _environment() -> dict[str, str]:
    """Return our environment, less what would lead pip or uv to another place than `.venv`."""
    misleading = {"VIRTUAL_ENV", "PYTHONHOME", "PYTHONPATH", "PIP_USER", "PIP_TARGET", "PIP_PREFIX"}
    kept = {name: value for name, value in os.environ.items() if name not in misleading}
    kept |= {
        "PIP_USER": "0",
        "UV_PROJECT_ENVIRONMENT": os.fspath(VENV),
        "UV_PYTHON": os.fspath(PYTHON),
        "UV_PYTHON_DOWNLOADS": "never",
    }
    kept.setdefault("PIP_RETRIES", "2")
    if not os.access(os.path.expanduser("~"), os.W_OK):
        kept.setdefault("UV_NO_CACHE", "1")
    return kept


def _last(output: Sequence[str]) -> str:
    said = [line.strip() for line in output if line.strip()]
    errors = [line for line in said if re.match(r"error|ERROR", line)]
    return (errors or said or ["it gave no reason"])[-1]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
