"""`manage.py runworker`: claim runs and run them until told to end."""

from __future__ import annotations

import dataclasses
import gc
import logging
import os
import signal
import sys
import threading
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from ... import metrics
from ...agents import agent_names
from ...conf import get_config
from ...lifelog import LINE, JsonLines, Terminal
from ...probes import LivenessFile, serve
from ...worker import Worker

logger = logging.getLogger("agentruns")

EXIT_SECONDS = 1.0
"""What the interpreter gets to end by itself after the drain."""


class Command(BaseCommand):
    help = (
        "Claims agent runs and runs them until SIGTERM or SIGINT, then drains. A second signal "
        "ends it at once."
    )
    liveness: LivenessFile | None = None

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
        parser.add_argument(
            "--json-logs", action="store_true", help="log one JSON object a line to standard error"
        )
        parser.add_argument(
            "--liveness-file",
            metavar="PATH",
            type=Path,
            help="touch this file every second while the worker lives",
        )
        parser.add_argument(
            "--health-port", type=int, metavar="PORT", help="answer /live and /ready on this port"
        )
        parser.add_argument(
            "--metrics-port", type=int, metavar="PORT", help="answer /metrics on this port"
        )
        parser.add_argument(
            "--bind", default="127.0.0.1", metavar="ADDRESS", help="address of these ports"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        terminal = _log_to_stderr(options["verbosity"], as_json=options["json_logs"])
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
            on_tick=lambda: self._tick(terminal, worker),
        )
        if (path := options["liveness_file"]) is not None:
            self.liveness = LivenessFile(path)
        _end_on_signals(worker)
        _serve(worker, options)
        # What was loaded stays: to look through it for garbage stops all threads for 50 to 70 ms.
        gc.freeze()
        worker.run()
        if self.liveness:
            self.liveness.remove()
        if terminal:
            terminal.end()
        _exit_soon()

    def _tick(self, terminal: Terminal | None, worker: Worker) -> None:
        if self.liveness:
            self.liveness.touch()
        if terminal:
            taken, slots = len(worker.executions()), worker.config.CONCURRENCY
            state = "draining" if worker.is_draining else "working"
            terminal.progress(f"{state}: {taken} of {slots} slots taken")


def _serve(worker: Worker, options: dict[str, Any]) -> None:
    health, scrapes = options["health_port"], options["metrics_port"]
    if scrapes is not None and not metrics.enabled:
        raise CommandError(
            "--metrics-port needs prometheus_client: pip install 'django-agentruns[metrics]'."
        )
    ports: dict[int, set[str]] = {}
    if health is not None:
        ports.setdefault(health, set()).update({"/live", "/ready"})
    if scrapes is not None:
        ports.setdefault(scrapes, set()).add("/metrics")
    for port, paths in ports.items():
        try:
            serve(worker, options["bind"], port, paths=paths)
        except (OSError, OverflowError) as error:
            raise CommandError(f"Cannot listen on {options['bind']}:{port}: {error}.") from None


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


def _log_to_stderr(verbosity: int, *, as_json: bool) -> Terminal | None:
    """Show the worker's log where the project has not configured one, or where JSON is asked for;
    the handler, where it shows progress too.
    """
    if not as_json and (logger.handlers or logging.getLogger().handlers):
        return None
    is_terminal = sys.stderr.isatty() and not as_json and verbosity > 0
    handler = Terminal(sys.stderr) if is_terminal else logging.StreamHandler()
    handler.setFormatter(JsonLines() if as_json else logging.Formatter(LINE))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO if verbosity else logging.WARNING)
    if as_json:
        logger.propagate = False  # each line once
    return handler if isinstance(handler, Terminal) else None
