#!/usr/bin/env python3
"""Take the screenshots of the admin in docs/images: `.venv/bin/python docs/screenshots.py`.

Fills a test database with rows of every kind, and drops it at the end. Needs Chromium and the
extras `dev` and `e2e`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

if __name__ == "__main__":
    os.environ["AGENTRUNS_SCREENSHOTS"] = str(ROOT / "docs" / "images")
    command = ["-m", "pytest", "-q", "tests/ops/test_screenshots.py"]
    sys.exit(subprocess.call([sys.executable, *command], cwd=ROOT))
