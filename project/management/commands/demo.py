"""Run the whole demo."""

from __future__ import annotations

import os
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from project import demo
from project.chat import smollm


class Command(BaseCommand):
    """A database, a web server and a worker in one command."""

    help = "Starts the demo: PostgreSQL (unless DATABASE_URL is set), a web server and a worker."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--once", metavar="TEXT", help="send TEXT, print the reply as it streams in, and end"
        )
        parser.add_argument("--port", type=int, help="port on 127.0.0.1 (8000, or a free one)")
        parser.add_argument(
            "--model", choices=["smollm2"], help="answer with a language model on this machine"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if options["model"]:
            if problem := smollm.missing_sentence():
                raise CommandError(problem)
            os.environ["AGENTRUNS_DEFAULT_AGENT"] = options["model"]
        demo.run(once=options["once"], port=options["port"])
