"""The demo in a folder of its own, as a person would start it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
OURS = ("DATABASE_URL", "LISTEN_DATABASE_URL", "DJANGO_SETTINGS_MODULE")


@contextmanager
def running_demo() -> Iterator[str]:
    """Start the demo from a copy of the project; its address, without a final slash."""
    with tempfile.TemporaryDirectory(prefix="demo-", ignore_cleanup_errors=True) as name:
        clone = Path(name)
        clone.chmod(0o755)  # the account of the database server must get in
        for folder in ("agentruns", "project", "templates"):
            shutil.copytree(ROOT / folder, clone / folder)
        for file in ("manage.py", "pyproject.toml", "uv.lock"):
            shutil.copy(ROOT / file, clone)
        environment = {key: value for key, value in os.environ.items() if key not in OURS}
        with (clone / "log").open("w") as log:
            demo = subprocess.Popen(
                [sys.executable, "manage.py", "demo", "--port", "0"],
                cwd=clone,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
            with demo:
                try:
                    yield _address(demo, clone / "log")
                finally:
                    demo.send_signal(signal.SIGINT)
                    with suppress(subprocess.TimeoutExpired):
                        demo.wait(60)
                    demo.kill()


def _address(demo: subprocess.Popen[str], log: Path) -> str:
    assert demo.stdout is not None
    line = demo.stdout.readline()
    assert line.startswith("http://"), log.read_text()
    return line.split()[0].rstrip("/")
