"""Settings of the processes that are measured: the demo project's, with the agents of benchmarks.

The environment decides about the rest: `DATABASE_URL`, `AGENTRUNS_<KEY>`; with `BENCH_POOL`,
requests share Django's pool of connections instead of opening one each.
"""

from __future__ import annotations

import os

os.environ.setdefault("SECRET_KEY", "benchmarks")

from project.settings import *
from project.settings import AGENTRUNS, DATABASES, INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "benchmarks"]
AGENTRUNS = {**AGENTRUNS, "DEFAULT_AGENT": "noop"}
ALLOWED_HOSTS = ["*"]
if os.environ.get("BENCH_POOL"):
    DATABASES["default"].setdefault("OPTIONS", {})["pool"] = True
