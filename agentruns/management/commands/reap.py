"""`manage.py reap`: end lost runs, wake conversations that stand still, trim old journals."""

from __future__ import annotations

import random
import signal
import threading
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from ... import db
from ...conf import get_config
from ...reaper import Reaper


class Command(BaseCommand):
    help = (
        "Ends lost runs and runs past a limit, wakes conversations that stand still, trims old "
        "journals; every worker does the same by itself."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--once", action="store_true", help="do all there is to do, print it, and exit"
        )
        parser.add_argument(
            "--interval", type=float, metavar="S", help="seconds between two sweeps"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        config = get_config()
        interval = config.REAP_SECONDS if options["interval"] is None else options["interval"]
        if interval <= 0:
            raise CommandError(f"--interval is {interval:g}; it must be above 0 seconds.")
        reaper = Reaper.of(config)
        if options["once"]:
            self.stdout.write(str(reaper.sweep(whole=True)))
            return
        self._loop(reaper, interval)

    def _loop(self, reaper: Reaper, interval: float) -> None:
        told = threading.Event()
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, _exit)
        backoff = db.Backoff(first=0.5, most=interval)
        while True:
            try:
                swept = reaper.sweep()
                backoff.reset()
                pause = interval * random.uniform(0.8, 1.0)
                if swept:
                    self.stdout.write(str(swept))
            except db.DATABASE_TROUBLE as error:
                db.connection().close()
                pause = backoff.next()
                self.stderr.write(f"could not sweep ({error}), trying again in {pause:.1f} s")
            told.wait(pause)


def _exit(signum: int, frame: Any) -> None:
    raise SystemExit(0)
