"""Runs of threads, and runs without a thread of the client's."""

from __future__ import annotations

from functools import partial
from typing import Any
from urllib.parse import quote, urlencode

from django.db import models
from django.http import HttpResponse, HttpResponseBase
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from ... import db
from ...events import parse_cursor as parse_number
from ...models import AgentRun, Conversation
from ...stop import stop_run
from ..waiting import answer_at_end
from ..wires import check_streams, open_conversation, settled_seq
from . import answering, asked, state, streaming
from .asked import WIRE, modes_in, modes_of
from .errors import Invalid, unsupported
from .fold import VALUES, Fold
from .views import LangGraphView, checked_id


class CreatingView(LangGraphView):
    """Enqueues a run; with a thread in the path, in that thread."""

    holds = False
    """The answer goes on until the run has ended."""

    def post(self, request: Request, thread_id: str | None = None) -> HttpResponseBase:
        if self.holds:
            check_streams(request)
        resume = answering.parse(self.body)
        if resume is not None:
            return self._resume(resume, thread_id)
        wanted = asked.parse(self.body)
        key = request.headers.get("Idempotency-Key")
        with db.atomic():  # a refused run opens no thread
            conversation = self._thread(thread_id, wanted) if thread_id is not None else None
            run = asked.enqueue(wanted, request.user, conversation, key)
        place = thread_id or state.thread_id_of(run.conversation)
        answer = self.answer(run, place, wanted.modes, streaming.START)
        if run.replayed:
            answer["Idempotent-Replayed"] = "true"
        return answer

    def answer(
        self, run: AgentRun, thread_id: str, modes: list[str], after: streaming.Cursor
    ) -> HttpResponseBase:
        return Response(state.run(run, thread_id), headers=headers_of(run, thread_id))

    def _resume(self, resume: answering.Resume, thread_id: str | None) -> HttpResponseBase:
        """Answer the thread's question: the run that asked it goes on, as the same run."""
        if thread_id is None:
            raise Invalid("command", "resume answers the question of a thread; name the thread.")
        conversation = self.get_thread(thread_id)
        run = answering.answer(self.runs().filter(conversation_id=conversation.pk), resume)
        return self.answer(run, thread_id, resume.modes, (run.answered_seq or 0, -1))

    def _thread(self, thread_id: str, wanted: asked.Asked) -> Conversation:
        try:
            return self.get_thread(thread_id)
        except NotFound:
            if not wanted.creates_thread:
                raise
            return open_conversation(self.request.user, WIRE, checked_id(thread_id))


class RunsView(CreatingView):
    def get(self, request: Request, thread_id: str) -> Response:
        given = request.query_params
        rows = self.runs().filter(conversation_id=self.get_thread(thread_id).pk)
        rows = rows.select_related(None).order_by("-created_at", "-pk")
        offset = parse_number(given.get("offset") or "0")
        if offset is None:
            raise Invalid("offset", "must be a whole number, 0 or more.")
        limit = self.limit(given.get("limit") or 10)
        if status := given.get("status"):
            rows = _with_status(rows, status)
        return Response([state.run(row, thread_id) for row in rows[offset : offset + limit]])


class StreamedRunsView(CreatingView):
    holds = True

    def answer(
        self, run: AgentRun, thread_id: str, modes: list[str], after: streaming.Cursor
    ) -> HttpResponseBase:
        return stream(run, thread_id, modes, after, asked_for=modes)


class AwaitedRunsView(CreatingView):
    holds = True

    def answer(
        self, run: AgentRun, thread_id: str, modes: list[str], after: streaming.Cursor
    ) -> HttpResponseBase:
        return values_at_end(run, thread_id)


class RunView(LangGraphView):
    def get(self, request: Request, thread_id: str, run_id: str) -> Response:
        return Response(state.run(self.get_run_of(thread_id, run_id), thread_id))


class StreamView(LangGraphView):
    def get(self, request: Request, thread_id: str, run_id: str) -> HttpResponseBase:
        check_streams(request)
        run = self.get_run_of(thread_id, run_id)
        modes = modes_in(request.query_params)
        after = streaming.parse_cursor(request.headers.get("Last-Event-ID"))
        return stream(run, thread_id, modes or modes_of(run), after, asked_for=modes)


class JoinView(LangGraphView):
    def get(self, request: Request, thread_id: str, run_id: str) -> HttpResponseBase:
        check_streams(request)
        return values_at_end(self.get_run_of(thread_id, run_id), thread_id)


class CancelView(LangGraphView):
    def post(self, request: Request, thread_id: str, run_id: str) -> HttpResponseBase:
        run = self.get_run_of(thread_id, run_id)
        if request.query_params.get("action", "interrupt") != "interrupt":
            raise unsupported("action", "Use 'interrupt': what was said is kept.")
        if not run.has_ended:
            stop_run(run)
        if request.query_params.get("wait", "0").lower() in ("1", "true"):
            headers = headers_of(run, thread_id, "/join")
            return answer_at_end(run.pk, _nothing, headers=headers)
        return HttpResponse(status=204)


def stream(
    run: AgentRun,
    thread_id: str,
    modes: list[str],
    after: streaming.Cursor,
    *,
    asked_for: list[str] | None = None,
) -> HttpResponseBase:
    """The run's stream; a client that comes back to its `Location` gets the same modes again."""
    settled = settled_seq(run)
    fold = Fold(str(run.pk), str(run.reply_message_id), modes, settled)
    needs_history = VALUES in modes
    history = partial(state.history_of, run.pk) if needs_history else None
    query = f"?{urlencode({'stream_mode': asked_for}, doseq=True)}" if asked_for else ""
    headers = headers_of(run, thread_id, f"/stream{query}")
    return streaming.stream(run.pk, fold, history, after, settled, headers)


def values_at_end(run: AgentRun, thread_id: str) -> HttpResponseBase:
    compose = partial(state.values_at_end, run.pk)
    headers = headers_of(run, thread_id, "/join")
    return answer_at_end(run.pk, compose, settled=settled_seq(run), headers=headers)


def headers_of(run: AgentRun, thread_id: str, route: str | None = None) -> dict[str, str]:
    """Where the run is, as both SDKs take it: from this wire's root, without the mount."""
    place = f"/threads/{quote(thread_id, safe='')}/runs/{run.pk}"
    headers = {"Content-Location": place}
    return headers if route is None else {**headers, "Location": place + route}


def _with_status(rows: models.QuerySet[Any], status: str) -> models.QuerySet[Any]:
    native = [number for number, name in state.STATUSES.items() if name == status]
    timed_out = models.Q(error__code="timeout")
    if status == "timeout":
        return rows.filter(timed_out, status="failed")
    if not native:
        names = dict.fromkeys((*state.STATUSES.values(), "timeout"))
        raise Invalid("status", f"must be one of {', '.join(names)}.")
    rows = rows.filter(status__in=native)
    return rows.exclude(timed_out) if status == "error" else rows


def _nothing() -> None:
    return None
