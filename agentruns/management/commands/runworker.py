"""`manage.py runworker`: claim runs and run them until told to end."""

from __future__ import annotations

import dataclasses
import logging
import os
import signal
import sys
import threading
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from ...agents import agent_names
from ...conf import get_config
from ...worker import Worker

logger = logging.getLogger("agentruns")

EXIT_SECONDS = 1.0
"""What the interpreter gets to end by itself after the drain."""


class Command(BaseCommand):
    help = (
        "Claims agent runs and runs them until SIGTERM or SIGINT, then drains. A second signal "
        "ends it at once."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--concurrency", type=int, metavar="N", help="slots of this worker")
        parser.add_argument("--agents", metavar="a,b", help="claim only runs of these agents")
        parser.add_argument(
            "--drain-timeout",
            type=float,
            metavar="S",
            help="seconds that runs get when told to end",
        )
        parser.add_argument(
            "--worker-id", metavar="ID", help="name of this worker in the table and the log"
        )
        parser.add_argument(
            "--no-reap", action="store_true", help="leave lost runs to other workers or to `reap`"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        _log_to_stderr(options["verbosity"])
        overrides = {
            "CONCURRENCY": options["concurrency"],
            "DRAIN_SECONDS": options["drain_timeout"],
        }
        config = dataclasses.replace(
            get_config(), **{k: v for k, v in overrides.items() if v is not None}
        )
        if config.CONCURRENCY < 1:
            raise CommandError(f"--concurrency is {config.CONCURRENCY}; it must be 1 or more.")
        if config.DRAIN_SECONDS < 0:
            raise CommandError(
                f"--drain-timeout is {config.DRAIN_SECONDS:g}; it must be 0 or more seconds."
            )
        worker = Worker(
            config,
            agents=_chosen(options["agents"]),
            worker_id=options["worker_id"],
            reaps=not options["no_reap"],
        )
        _end_on_signals(worker)
        worker.run()
        _exit_soon()


def _chosen(text: str | None) -> list[str]:
    known = agent_names()
    if text is None:
        if not known:
            raise CommandError(
                "No agent is registered. Write one in agents.py of an installed app."
            )
        return known
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = sorted(set(names) - set(known))
    if unknown or not names:
        raise CommandError(
            f"--agents {text!r}: not registered: {', '.join(unknown) or 'none named'}. "
            f"Known: {', '.join(known)}."
        )
    return names


def _end_on_signals(worker: Worker) -> None:
    def end(signum: int, _frame: Any) -> None:
        if worker.end() > 1:
            os.write(2, b"second signal: ending at once; what runs is left to the reaper\n")
            os._exit(1)

    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, end)


def _exit_soon() -> None:
    """Exit even where agents' code left threads behind that the interpreter waits for."""

    def exit_now() -> None:
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    timer = threading.Timer(EXIT_SECONDS, exit_now)
    timer.daemon = True
    timer.start()


def _log_to_stderr(verbosity: int) -> None:
    """Show the worker's log where the project has not configured one."""
    if logger.handlers or logging.getLogger().handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO if verbosity else logging.WARNING)
