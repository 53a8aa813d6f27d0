"""`manage.py agentruns`: look at the queue, at one run, at the whole set-up."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.core.management.base import BaseCommand, CommandError, CommandParser

from ... import db
from ...doctor import examine
from ...status import Seen, Status, read_status
from ...text import span
from ...why import explain

MARKS = {"ok": "ok     ", "warning": "WARNING", "error": "ERROR  "}


class Command(BaseCommand):
    help = "Shows how agent runs stand; none of its parts writes anything."
    requires_system_checks = ()  # probes call it often, and the doctor runs the checks itself

    def add_arguments(self, parser: CommandParser) -> None:
        parts = parser.add_subparsers(dest="part", required=True, parser_class=ArgumentParser)
        _part(parts, "status", "depth, oldest wait, what runs, and the workers that were seen")
        why = _part(parts, "why", "why a run stands where it stands, in one sentence")
        why.add_argument("run_id", metavar="RUN_ID", type=UUID)
        health = _part(
            parts, "health", "for probes: exit code 1 and the reasons if a limit is broken"
        )
        health.add_argument(
            "--max-wait", type=float, metavar="S", help="longest wait of a run that may start"
        )
        health.add_argument(
            "--min-workers", type=int, metavar="N", help="workers that must be alive"
        )
        _part(parts, "doctor", "tries what the product relies on; exit code 1 on an error")

    def handle(self, *args: Any, **options: Any) -> None:
        part: Callable[[dict[str, Any]], None] = getattr(self, options["part"])
        try:
            part(options)
        except db.DATABASE_TROUBLE as error:
            first = (str(error).strip().splitlines() or [""])[0]
            if options["json"]:
                self._json({"error": f"The database cannot be read: {first}"})
            raise CommandError(f"The database cannot be read: {first}") from None

    def status(self, options: dict[str, Any]) -> None:
        status = read_status()
        if options["json"]:
            self._json(status.as_json())
            return
        for line in describe(status):
            self.stdout.write(line)

    def why(self, options: dict[str, Any]) -> None:
        reason = explain(options["run_id"])
        if options["json"]:
            self._json(reason.as_json())
        else:
            self.stdout.write(reason.sentence)
        if reason.code == "unknown":
            raise SystemExit(1)

    def health(self, options: dict[str, Any]) -> None:
        problems = broken_limits(
            read_status(), max_wait=options["max_wait"], min_workers=options["min_workers"]
        )
        if options["json"]:
            self._json({"healthy": not problems, "problems": problems})
        else:
            self.stdout.write("\n".join(problems) or "healthy")
        if problems:
            raise SystemExit(1)

    def doctor(self, options: dict[str, Any]) -> None:
        findings = []
        for finding in examine():
            findings.append(finding)
            if not options["json"]:
                self.stdout.write(f"{MARKS[finding.level]} {finding.probe}: {finding.sentence}")
                if finding.hint:
                    self.stdout.write(f"        {finding.hint}")
        if options["json"]:
            self._json({"findings": [finding.as_json() for finding in findings]})
        if any(finding.level == "error" for finding in findings):
            raise SystemExit(1)

    def _json(self, value: Any) -> None:
        self.stdout.write(json.dumps(value, default=str))


def _part(parts: Any, name: str, text: str) -> ArgumentParser:
    part: ArgumentParser = parts.add_parser(name, help=text, description=text)
    part.add_argument("--json", action="store_true", help="one JSON object on standard output")
    return part


def describe(status: Status) -> list[str]:
    """The queue in lines for people."""
    wait = "" if status.oldest_wait is None else f", the oldest for {span(status.oldest_wait)}"
    lines = [
        f"queued   {status.queued}: {status.ready} ready{wait}; {status.behind} behind another "
        f"turn; {status.delayed} delayed",
        f"running  {status.running}: {status.stopping} asked to stop; {status.lost} lost",
        f"waiting  {status.waiting} for a person's answer",
    ]
    for agent, counts in status.by_agent.items():
        lines.append(
            f"agent    {agent}: {counts['queued']} queued, {counts['running']} running, "
            f"{counts['waiting']} waiting for an answer"
        )
    lines += [f"worker   {_worker(worker)}" for worker in status.workers]
    if not status.live_workers:
        lines.append("worker   none is alive")
    return lines


def _worker(worker: Seen) -> str:
    slots = "?" if worker.slots is None else worker.slots
    state = "draining" if worker.draining else "alive"
    return (
        f"{worker.worker_id}: {state if worker.live else 'gone'}, {worker.busy} of {slots} slots "
        f"taken, seen {span(worker.seen_seconds_ago)} ago, agents "
        f"{', '.join(worker.agents) or 'not known'}"
    )


def broken_limits(status: Status, *, max_wait: float | None, min_workers: int | None) -> list[str]:
    """What is beyond the limits, a sentence each; none: healthy."""
    found = []
    wait, live = status.oldest_wait, len(status.live_workers)
    if max_wait is not None and wait is not None and wait > max_wait:
        found.append(
            f"A run that may start has waited for {span(wait)}; at most {max_wait:g} s are allowed."
        )
    if min_workers is not None and live < min_workers:
        found.append(f"{live} workers are alive; at least {min_workers} must be.")
    return found
