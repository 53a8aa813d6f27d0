"""Run the project's tests."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from django.conf import settings
from django.core.management.base import BaseCommand

IN_PARALLEL = ["-n", "4", "--dist", "worksteal"]
"""For the whole suite: much of it waits for processes, so there are more of them than cores."""


class Command(BaseCommand):
    """Hand over to pytest, with every argument as it is; without any, run all in parallel."""

    help = "Runs pytest; all arguments are pytest's own. Without any: everything, in parallel."
    requires_system_checks = ()

    def run_from_argv(self, argv: list[str]) -> NoReturn:
        os.chdir(settings.BASE_DIR)
        # The tests start hundreds of processes; compiling all modules in each doubles the time.
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        # A process of its own, so that pytest starts the database before it loads the settings.
        os.execv(sys.executable, [sys.executable, "-m", "pytest", *(argv[2:] or IN_PARALLEL)])  # noqa: S606 - no shell wanted
