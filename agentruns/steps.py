"""Do a thing once, whoever attempts it.

Rung 4: before a step and after it, its row is written behind the fence of the run. A retry of the
same message finds it: a step that is done is answered from the row, and of one that began and was
not recorded as done nobody knows whether it took effect.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4, uuid5

from django.db.models.functions import Now

from . import db
from .exceptions import OutcomeUnknown
from .fence import Fence, hold
from .models import Step
from .text import encode


@dataclass(frozen=True, slots=True)
class Attempt:
    """One call of `run.once`."""

    fence: Fence
    user_message_id: UUID
    name: str
    mark: UUID = field(default_factory=uuid4)
    """By it a call knows the row as its own when the answer to the write was lost."""


@dataclass(frozen=True, slots=True)
class Done:
    """The step was done before, with this result."""

    result: Any


def key(user_message_id: UUID, name: str) -> str:
    """The same for every attempt at the message, and for no other message."""
    return str(uuid5(user_message_id, name))


def begin(attempt: Attempt) -> Done | None:
    """Record that the step begins: None; or what it gave before.

    Raises `OutcomeUnknown` where it began before and is not known to be done, and `Superseded`.
    """
    with db.atomic():
        hold(attempt.fence)
        step, created = Step.objects.get_or_create(
            user_message_id=attempt.user_message_id,
            name=attempt.name,
            defaults={"run_id": attempt.fence.run_id, "mark": attempt.mark},
        )
    if created or (step.mark == attempt.mark and step.done_at is None):
        return None
    if step.done_at is None:
        raise OutcomeUnknown(
            f"step {attempt.name!r} of message {attempt.user_message_id} began in run "
            f"{step.run_id} and was not recorded as done: it may have taken effect. Find out; "
            "where it has not, delete its row of agentruns_step and retry."
        )
    return Done(step.result)


def finish(attempt: Attempt, result: Any) -> None:
    """Record that the step is done; `result` is as `storable` gave it. Raises `Superseded`."""
    with db.atomic():
        hold(attempt.fence)
        Step.objects.filter(
            user_message_id=attempt.user_message_id, name=attempt.name, mark=attempt.mark
        ).update(done_at=Now(), result=result)


def withdraw(attempt: Attempt) -> None:
    """Forget that the step began: it was never called."""
    with db.atomic():
        hold(attempt.fence)
        Step.objects.filter(
            user_message_id=attempt.user_message_id, name=attempt.name, mark=attempt.mark
        ).delete()


def storable(name: str, result: Any) -> Any:
    """The result as the row gives it back. Raises `ValueError` where JSON cannot carry it."""
    return json.loads(encode(result, f"the result of step {name!r}"))
