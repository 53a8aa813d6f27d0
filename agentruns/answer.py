"""Answer a run's question.

Rung 4: the answer, its event and the run's way back into the queue are one transaction under the
locks that a stop and an expiry take as well: one of them is first, and the others see it.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db.models import Max

from . import db, turns, wake
from .conf import get_config
from .exceptions import AlreadyAnswered, AnotherQuestion, InvalidAnswer, NotWaiting, QuestionExpired
from .models import AgentRun, ClockTimestamp, Question, RunEvent, RunStatus
from .text import check_exact, encode, size_of, unstorable


def check_answer(answer: Any) -> None:
    """Raise `InvalidAnswer` unless JSON carries it as it is, and its size is that of a message."""
    try:
        text = encode(answer, "answer")
        _check_size(text)
        check_exact(text, answer, "answer")
    except ValueError as error:
        raise InvalidAnswer(f"{error}.") from None


def _check_size(text: str) -> None:
    limit = get_config().MAX_CONTENT_CHARS
    if (size := size_of(text)) > limit:
        raise ValueError(f"answer has {size} characters as JSON; at most {limit} are taken")


def answer_run(run: AgentRun | UUID, answer: Any, *, key: str | None = None) -> AgentRun:
    """Answer the question that the run waits with, and queue it again, ahead of its conversation's
    later turns; the run.

    `answer` is anything that JSON carries. With `key`, only the question of that key is answered.
    Raises `InvalidAnswer`, `AlreadyAnswered`, `NotWaiting`, `AnotherQuestion`, `QuestionExpired`.
    """
    check_answer(answer)
    if key is not None and (found := unstorable(key)) is not None:
        raise InvalidAnswer(f"key contains {found}, which no question's key does.")
    run_id = run.pk if isinstance(run, AgentRun) else run
    conversation_id = AgentRun.objects.values_list("conversation_id", flat=True).get(pk=run_id)
    with db.atomic():
        turns.lock_conversations([conversation_id])
        # Looked at without its lock: a claim steps over a locked row, and what was answered a
        # moment ago is about to be claimed. What waits goes on under the conversation's lock only.
        asking: AgentRun = AgentRun.objects.get(pk=run_id)
        question = _open_question(asking, key)
        AgentRun.objects.select_for_update(no_key=True, of=("self",)).get(pk=run_id)
        Question.objects.filter(pk=question.pk).update(answer=answer, answered_at=ClockTimestamp())
        seq = asking.events.aggregate(newest=Max("seq"))["newest"] + 1
        received = {"key": question.key, "answer": answer}
        RunEvent.objects.bulk_create(
            [RunEvent(run=asking, seq=seq, type="input_received", payload=received)]
        )
        AgentRun.objects.filter(pk=run_id).update(
            status=RunStatus.QUEUED, ready_at=ClockTimestamp(), answered_seq=seq
        )
        wake.notify(wake.RUN_READY, [run_id])
        wake.notify(wake.RUN_EVENTS, [run_id])
        asking.refresh_from_db()
    return asking


def _open_question(run: AgentRun, key: str | None) -> Question:
    """The question that the run waits with. The caller has locked the conversation."""
    if (run.error or {}).get("code") == "input_expired":
        raise QuestionExpired(f"The question of run {run.pk} has expired, and the run has ended.")
    if run.status != RunStatus.WAITING:
        raise _refusal(run, key)
    of_run = Question.objects.of(run)
    question: Question | None = of_run.unanswered().first()
    if question is None:
        raise NotWaiting(f"The question of run {run.pk} was deleted; stop the run, and retry it.")
    if key is not None and key != question.key:
        if of_run.filter(key=key).exists():
            raise AlreadyAnswered(f"Question {key!r} of run {run.pk} was answered already.")
        raise AnotherQuestion(f"Run {run.pk} waits with question {question.key!r}, not {key!r}.")
    if of_run.late().filter(pk=question.pk).exists():
        raise QuestionExpired(
            f"Question {question.key!r} of run {run.pk} has expired; the run is being ended."
        )
    return question


def _refusal(run: AgentRun, key: str | None) -> NotWaiting:
    answered = Question.objects.of(run)
    if key is not None:
        answered = answered.filter(key=key)
    if answered.exists():
        return AlreadyAnswered(
            f"The question of run {run.pk} was answered already; the run is {run.status}."
        )
    return NotWaiting(f"Run {run.pk} is {run.status}; it waits for no answer.")
