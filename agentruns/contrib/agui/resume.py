"""The client's answer to what a run asks: the `resume` of its next input.

Where the run waits, the client was told an interrupt, whose id names the run and its question.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from rest_framework.exceptions import NotFound

from ...answer import answer_run
from ...errors import malformed
from ...exceptions import NotWaiting
from ...models import AgentRun, Question
from ...owned import parse_id
from ...stop import stop_run
from ...text import unstorable

_STATUSES = ("resolved", "cancelled")


@dataclass(frozen=True, slots=True)
class Resume:
    """A checked `ResumeEntry`."""

    run_id: UUID
    key: str
    is_cancelled: bool
    answer: Any


def resume_of(body: Any) -> Resume | None:
    """The answer in the input, if there is one. A thread waits with one question at most."""
    entries = body.get("resume")
    if not entries:
        return None
    if not isinstance(entries, list) or len(entries) != 1 or not isinstance(entries[0], dict):
        raise malformed("resume", "Must be a list of one answer: a thread has one open question.")
    entry = entries[0]
    if entry.get("status") not in _STATUSES:
        raise malformed("resume", f"status must be one of {', '.join(_STATUSES)}.")
    run_id, _, key = str(entry.get("interruptId")).partition(":")
    found = parse_id(run_id)
    if found is None or unstorable(key):
        raise NotFound("resume: there is no such interrupt in that thread.", "interrupt_not_found")
    return Resume(found, key, entry["status"] == "cancelled", entry.get("payload"))


def settle(run: AgentRun, resume: Resume) -> AgentRun:
    """Answer the run's question, or stop the run where the client gives it up; the run as it is
    then. The same sent again changes nothing."""
    if resume.is_cancelled:
        _give_up(run, resume.key)
    elif not _was_answered_so(run, resume):
        answer_run(run, resume.answer, key=resume.key)
    run.refresh_from_db()
    return run


def _give_up(run: AgentRun, key: str) -> None:
    if run.has_ended:
        return
    if not Question.objects.of(run).unanswered().filter(key=key).exists():
        raise NotWaiting(
            f"Run {run.pk} does not wait with question {key!r}: it was answered, or never asked."
        )
    stop_run(run)


def _was_answered_so(run: AgentRun, resume: Resume) -> bool:
    asked = Question.objects.of(run).filter(key=resume.key).exclude(answered_at=None)
    answered = asked.first()
    return answered is not None and answered.answer == resume.answer
