"""Threads, runs and states as the SDKs see them."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from ...models import AgentRun, Conversation, Message, Question, RunStatus
from ...reply import Reply
from . import messages
from .asked import WIRE, own_of
from .fold import INTERRUPT, error_of, interrupt

STATUSES = {
    RunStatus.QUEUED: "pending",
    RunStatus.RUNNING: "running",
    RunStatus.WAITING: "running",
    RunStatus.COMPLETED: "success",
    RunStatus.FAILED: "error",
    RunStatus.CANCELLED: "interrupted",
}
Values = dict[str, Any]


def thread_id_of(conversation: Conversation) -> str:
    """The id by which the client knows the thread: its own, or the conversation's."""
    client_id = conversation.client_id or ""
    return client_id.removeprefix(f"{WIRE}:") if client_id else str(conversation.pk)


def thread(conversation: Conversation) -> dict[str, Any]:
    latest = conversation.runs.order_by("-turn", "-attempt").first()
    changed = conversation.created_at if latest is None else _changed(latest)
    return {
        "thread_id": thread_id_of(conversation),
        "created_at": conversation.created_at.isoformat(),
        "updated_at": changed.isoformat(),
        "metadata": conversation.metadata,
        "status": _thread_status(conversation, latest),
        "values": thread_values(conversation),
        "interrupts": _interrupts(conversation),
    }


def run(row: AgentRun, thread_id: str) -> dict[str, Any]:
    own = own_of(row)
    return {
        "run_id": str(row.pk),
        "thread_id": thread_id,
        "assistant_id": row.agent,
        "created_at": row.created_at.isoformat(),
        "updated_at": _changed(row).isoformat(),
        "status": run_status(row),
        "metadata": {name: value for name, value in row.metadata.items() if name != WIRE},
        "kwargs": {},
        "multitask_strategy": own.get("multitask_strategy", "enqueue"),
    }


def run_status(row: AgentRun) -> str:
    if row.status == RunStatus.FAILED and (row.error or {}).get("code") == "timeout":
        return "timeout"
    return STATUSES[RunStatus(row.status)]


def thread_values(conversation: Conversation) -> Values:
    said = Message.objects.filter(conversation_id=conversation.pk).transcript()
    return {"messages": messages.from_rows(said)}


def history_of(run_id: UUID) -> list[messages.Message]:
    """The thread as the run found it: what was said before, and its own message."""
    row = AgentRun.objects.select_related("user_message").get(pk=run_id)
    own = row.user_message
    said = Message.objects.filter(conversation_id=row.conversation_id).transcript()
    if own.position is None:  # stopped before it started
        return messages.from_rows(said)
    return messages.from_rows([*said.filter(position__lt=own.position), own])


def values_at_end(run_id: UUID) -> Values:
    """What `wait` and `join` answer when the run has ended."""
    row = AgentRun.objects.get(pk=run_id)
    if row.status == RunStatus.FAILED:
        return {"__error__": error_of(row.error)}
    said = history_of(run_id)
    if not row.has_ended:
        return _values_so_far(row, said)
    reply = Message.objects.filter(pk=row.reply_message_id).first()
    return {"messages": [*said, *(messages.from_row(reply) if reply else [])]}


def _values_so_far(row: AgentRun, said: list[messages.Message]) -> Values:
    """Of a run that asks, whose reply is in its journal only."""
    reply = Reply(row.events.order_by("seq").values_list("type", "payload"))
    if reply.has_text or reply.parts:
        said = [*said, *messages.reply(str(row.reply_message_id), reply.content, reply.parts)]
    interrupts = _interrupts(row.conversation).get(str(row.pk), [])
    return {"messages": said, **({INTERRUPT: interrupts} if interrupts else {})}


def states(conversation: Conversation, limit: int, before: str | None = None) -> list[Any]:
    """The thread's states, one after each of its messages, newest first."""
    said = list(Message.objects.filter(conversation_id=conversation.pk).transcript())
    ids = [str(row.pk) for row in said]
    end = ids.index(before) if before in ids else len(said)
    first = max(0, end - limit)
    return [_state(conversation, said[: count + 1]) for count in reversed(range(first, end))]


def state(conversation: Conversation) -> dict[str, Any]:
    said = list(Message.objects.filter(conversation_id=conversation.pk).transcript())
    shown = _state(conversation, said)
    for run_id, interrupts in _interrupts(conversation).items():
        task = {"id": run_id, "name": "agent", "error": None, "interrupts": interrupts}
        shown["tasks"].append({**task, "checkpoint": None, "state": None, "result": None})
        shown["interrupts"].extend(interrupts)
    return shown


def _state(conversation: Conversation, said: list[Message]) -> dict[str, Any]:
    thread_id = thread_id_of(conversation)
    waits = bool(said) and said[-1].role == "user"
    parent = _checkpoint(thread_id, said[:-1]) if len(said) > 1 else None
    return {
        "values": {"messages": messages.from_rows(said)},
        "next": ["agent"] if waits else [],
        "checkpoint": _checkpoint(thread_id, said),
        "metadata": {"source": "input" if waits else "loop", "step": len(said) - 1},
        "created_at": (said[-1] if said else conversation).created_at.isoformat(),
        "parent_checkpoint": parent,
        "tasks": [],
        "interrupts": [],
    }


def _interrupts(conversation: Conversation) -> dict[str, Any]:
    """The question that the thread waits with, by the run that asked it."""
    waiting = AgentRun.objects.filter(conversation_id=conversation.pk).waiting().values("pk")
    asked = Question.objects.unanswered().filter(run_id__in=waiting)
    return {str(row.run_id): [interrupt(str(row.run_id), row.key, row.question)] for row in asked}


def _checkpoint(thread_id: str, said: list[Message]) -> dict[str, Any]:
    newest = str(said[-1].pk) if said else None
    return {"thread_id": thread_id, "checkpoint_ns": "", "checkpoint_id": newest}


def _thread_status(conversation: Conversation, latest: AgentRun | None) -> str:
    runs = AgentRun.objects.filter(conversation_id=conversation.pk)
    if runs.waiting().exists():
        return "interrupted"
    if runs.active().exists():
        return "busy"
    return "error" if latest is not None and latest.status == RunStatus.FAILED else "idle"


def _changed(row: AgentRun) -> Any:
    return row.finished_at or row.started_at or row.created_at
