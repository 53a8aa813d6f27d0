"""What must be true of every run's history, whatever happened."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from agentruns import enqueue_run
from agentruns.models import AgentRun, Conversation, Message, RunEvent, RunStatus
from tests.support import PATIENCE_SECONDS, until

EXPECTED = {
    RunStatus.COMPLETED: {"complete"},
    RunStatus.FAILED: {"partial", "superseded"},
    RunStatus.CANCELLED: {"partial", "superseded"},
}


def enqueue(conversation: Conversation | None, agent: str, **metadata: Any) -> AgentRun:
    if conversation is None:
        conversation = new_conversation()
    return enqueue_run(conversation=conversation, agent=agent, content="go", metadata=metadata)


def new_conversation() -> Conversation:
    [user] = Conversation._meta.get_field("user").related_model.objects.all()  # type: ignore[union-attr]
    return Conversation.objects.create(user=user)


def events(run: AgentRun) -> list[RunEvent]:
    return list(RunEvent.objects.filter(run_id=run.pk).order_by("seq"))


def text_of(run: AgentRun) -> str:
    """The deltas of the run's text, concatenated."""
    return "".join(
        event.payload["delta"]
        for event in events(run)
        if event.type == "content_delta" and event.payload["stream"] == "text"
    )


def reply_of(run: AgentRun) -> str | None:
    reply = Message.objects.filter(pk=run.reply_message_id).first()
    return reply and reply.content


def started(run: AgentRun, *, chars: int = 1) -> AgentRun:
    """Wait until the run has said something that is stored."""
    until(lambda: len(text_of(run)) >= chars, f"{chars} characters of {run}")
    return run


def ended(run: AgentRun, *, seconds: float = PATIENCE_SECONDS) -> AgentRun:
    """Wait until the run has ended; the run, its history checked."""

    def look() -> bool:
        run.refresh_from_db()
        return run.has_ended

    until(look, f"the end of {run}", seconds=seconds)
    check(run)
    return run


def outcome(run: AgentRun) -> tuple[str, str | None]:
    return run.status, run.error and run.error["code"]


def counted(text: str) -> bool:
    """Whether the text is `0 1 2 …` without a gap and without a number said twice."""
    return text == "".join(f"{number} " for number in range(text.count(" ")))


def check(run: AgentRun) -> None:
    """One run that has ended: contiguous seqs, one `complete`, last and true; the text in full."""
    journal = events(run)
    assert [event.seq for event in journal] == list(range(1, len(journal) + 1))
    assert [event.type for event in journal[:2]] == ["user_message_created", "run_queued"]
    assert [event.type for event in journal].count("complete") == 1
    last = journal[-1]
    assert last.type == "complete"
    assert (last.payload["status"], last.payload["error"]) == (run.status, run.error)
    assert run.last_seq == last.seq
    reply = Message.objects.filter(pk=run.reply_message_id).first()
    assert last.payload["message_id"] == (reply and str(reply.pk))
    assert (reply.content if reply else "") == text_of(run)
    if reply is not None:
        assert reply.status in EXPECTED[RunStatus(run.status)]
    if run.cancel_requested:
        assert run.status != RunStatus.COMPLETED


def check_all(conversations: Iterable[Conversation]) -> None:
    """Whole conversations: no run is left, each history is whole, turns ran in order, one at a
    time.
    """
    for conversation in conversations:
        runs = list(AgentRun.objects.filter(conversation=conversation).in_turn_order())
        assert all(run.has_ended for run in runs)
        for run in runs:
            check(run)
        ran = [run for run in runs if run.started_at is not None]
        for earlier, later in itertools.pairwise(ran):
            assert earlier.finished_at <= later.started_at, (
                f"{later} started before {earlier} ended"
            )
