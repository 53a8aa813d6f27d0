"""`command: {"resume": ...}`: the answer to what a run of the thread asks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.db import models

from ...answer import answer_run
from ...exceptions import NotWaiting
from ...models import AgentRun, Question, RunStatus
from ..wires import interrupt_id
from .asked import parse_modes
from .errors import Invalid, unsupported
from .fold import VALUES


@dataclass(frozen=True, slots=True)
class Resume:
    """A checked body that answers."""

    value: Any
    modes: list[str]


def parse(body: dict[str, Any]) -> Resume | None:
    """The answer in the body of `POST .../runs`, if it has one instead of an input."""
    command = body.get("command")
    if not command:
        return None
    if not isinstance(command, dict) or "resume" not in command:
        raise unsupported("command", 'Use {"resume": ...}, which answers a question.')
    for name in command:
        if name != "resume" and command[name]:
            raise unsupported(f"command.{name}", "An agent has no nodes and no state to change.")
    if body.get("input"):
        raise Invalid("input", "must be absent beside command: one request answers or says.")
    return Resume(command["resume"], parse_modes(body.get("stream_mode")) or [VALUES])


def answer(runs: models.QuerySet[AgentRun], resume: Resume) -> AgentRun:
    """Answer the question that one of these runs of a thread waits with; the run, queued again.

    The value may name its interrupt, as `{id: value}`: then it answers no other one.
    """
    run = runs.filter(status=RunStatus.WAITING).first()
    if run is None:
        raise NotWaiting("No run of the thread waits for an answer.")
    question = Question.objects.of(run).unanswered().first()
    if question is None:  # answered, or given up, this moment
        raise NotWaiting("No run of the thread waits for an answer.")
    value, name = resume.value, interrupt_id(str(run.pk), question.key)
    if isinstance(value, dict) and list(value) == [name]:
        value = value[name]
    return answer_run(run, value, key=question.key)
