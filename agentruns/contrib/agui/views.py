"""The routes of an `HttpAgent`: run, connect, stop."""

from __future__ import annotations

from collections.abc import Iterator

from django.http import HttpResponse, HttpResponseBase
from rest_framework import status
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from ...errors import conversation_not_found
from ...models import AgentRun, Conversation
from ..wires import (
    Event,
    WireView,
    check_streams,
    sentence,
    settled_seq,
    sse,
    stop,
    stream,
    stream_batches,
)
from . import messages
from .fold import Fold
from .messages import WIRE, Messages
from .resume import Resume, resume_of, settle
from .thread import Asked, asked_of, earlier, latest, start


class AgentView(WireView):
    def handle_exception(self, exc: Exception) -> Response:
        """A refusal has the fields of the event that says so in a stream."""
        response = super().handle_exception(exc)
        code = response.data.get("code") if isinstance(response.data, dict) else None
        error = {"message": sentence(response.data), "code": code or "invalid"}
        response.data = {"type": "RUN_ERROR", **error}
        return response


class RunView(AgentView):
    def post(self, request: Request, agent: str | None = None) -> HttpResponseBase:
        check_streams(request)
        asked = asked_of(request.data)
        conversation = self.find_conversation(WIRE, asked.thread_id)
        resume = resume_of(request.data)
        if resume is not None:
            return attach(settle(self._asking(conversation, resume), resume), asked)
        run = earlier(request.user, asked)
        if run is not None:
            return attach(run, asked)
        run = start(request.user, asked, agent, request.headers.get("Idempotency-Key"))
        if run.replayed:
            return attach(run, asked)
        fold = Fold(asked.thread_id, asked.run_id, run.reply_message_id)
        return stream(run.pk, lambda event: map(sse, fold(event)), until_question=0)

    def _asking(self, conversation: Conversation | None, resume: Resume) -> AgentRun:
        run = self.runs().filter(conversation=conversation, pk=resume.run_id).first()
        if conversation is None or run is None:
            raise NotFound(
                "resume: there is no such interrupt in that thread.", "interrupt_not_found"
            )
        self.check_object_permissions(self.request, run)
        return run


class ConnectView(AgentView):
    def post(self, request: Request, agent: str | None = None) -> HttpResponseBase:
        check_streams(request)
        asked = asked_of(request.data)
        conversation = self.find_conversation(WIRE, asked.thread_id)
        run = latest(conversation) if conversation else None
        if run is not None:
            return attach(run, asked)
        return idle(asked, messages.whole(conversation) if conversation else [])


class StopView(AgentView):
    def post(self, request: Request, thread_id: str, agent: str | None = None) -> Response:
        conversation = self.find_conversation(WIRE, thread_id)
        if conversation is None:
            raise conversation_not_found()
        return Response(stop(conversation), status=status.HTTP_202_ACCEPTED)


def attach(run: AgentRun, asked: Asked) -> HttpResponseBase:
    """The thread's messages as they stand, what is open opened again, then the run as it goes on.

    A client that is sent a text's pieces again appends them to those it has.
    """
    before, after = messages.before(run), messages.after(run)
    settled = settled_seq(run)
    fold = Fold(asked.thread_id, asked.run_id, run.reply_message_id, settled)
    attached = False

    def write(batch: list[Event]) -> Iterator[str]:
        nonlocal attached
        frames = [frame for event in batch for frame in fold(event)]
        if attached:
            yield from map(sse, frames)
            return
        attached = True
        said = Messages()
        for frame in frames:
            said.apply(frame)
        yield sse(frames[0])
        yield sse({"type": "MESSAGES_SNAPSHOT", "messages": [*before, *said, *after]})
        yield from map(sse, fold.reopened())
        if frames[-1]["type"] in ("RUN_FINISHED", "RUN_ERROR"):
            yield sse(frames[-1])

    return stream_batches(run.pk, write, until_question=settled)


def idle(asked: Asked, said: list[Event]) -> HttpResponse:
    """A thread in which nothing ever ran: its messages, and that is all."""
    ids = {"threadId": asked.thread_id, "runId": asked.run_id}
    frames = [
        {"type": "RUN_STARTED", **ids},
        {"type": "MESSAGES_SNAPSHOT", "messages": said},
        {"type": "RUN_FINISHED", **ids, "outcome": {"type": "success"}},
    ]
    return HttpResponse("".join(map(sse, frames)), content_type="text/event-stream")
