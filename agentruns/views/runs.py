"""Runs: enqueue, list, look at, stop, retry, and their events as JSON."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django.http import HttpResponse
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response

from .. import errors, events, tokens
from ..answer import answer_run
from ..enqueue import enqueue_run
from ..models import AgentRun, RunStatus
from ..owned import parse_id
from ..pagination import parse_limit
from ..retry import retry_run
from ..serializers import AnswerSerializer, RunRequestSerializer, RunSerializer
from ..stop import stop_run
from . import documents
from .api import ENQUEUED_SEQ, ApiView


@documents.runs
class RunsView(ApiView):
    serializer_class = RunSerializer

    def get_queryset(self) -> QuerySet[AgentRun]:
        runs, given = self.runs(), self.request.query_params
        if "conversation" in given:
            if parse_id(given["conversation"]) is None:
                raise errors.malformed("conversation", "Must be a valid UUID.")
            conversation = self.get_conversation(given["conversation"])
            runs = runs.filter(conversation_id=conversation.pk)
        if "status" in given:
            if given["status"] not in RunStatus.values:
                known = ", ".join(RunStatus.values)
                raise errors.malformed("status", f"Must be one of {known}.")
            runs = runs.filter(status=given["status"])
        return runs

    def get(self, request: Request) -> Response:
        page = self.paginate_queryset(self.get_queryset())
        return self.get_paginated_response(RunSerializer(page, many=True).data)  # type: ignore[arg-type]

    def post(self, request: Request) -> Response:
        body = RunRequestSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        run = self._enqueue(**body.validated_data)
        if run.replayed:
            answer = self._answer(self.get_run(str(run.pk)))
            answer["Idempotent-Replayed"] = "true"
            return answer
        run.journal_seq = ENQUEUED_SEQ
        return self._answer(run)

    def _enqueue(self, *, conversation_id: Any = None, draft_id: Any = None, **asked: Any) -> Any:
        conversation = self.get_conversation(str(conversation_id)) if conversation_id else None
        return enqueue_run(
            conversation=conversation,
            user=self.request.user,
            draft=draft_id,
            idempotency_key=self.request.headers.get("Idempotency-Key"),
            **asked,
        )

    def _answer(self, run: AgentRun) -> Response:
        return self.run_answer(run, status=status.HTTP_202_ACCEPTED, located=True)


@documents.run
class RunView(ApiView):
    serializer_class = RunSerializer

    def get(self, request: Request, run_id: str) -> Response:
        return self.run_answer(self.get_run(run_id), status=status.HTTP_200_OK)


@documents.run_stop
class RunStopView(ApiView):
    serializer_class = RunSerializer

    def post(self, request: Request, run_id: str) -> Response:
        run = self.get_run(run_id)
        if run.has_ended:
            return self.run_answer(run, status=status.HTTP_200_OK)
        stopped = stop_run(run)
        # A stop never completes or fails a run: it ended by itself before the stop reached it.
        by_itself = stopped.status in (RunStatus.COMPLETED, RunStatus.FAILED)
        code = status.HTTP_200_OK if by_itself else status.HTTP_202_ACCEPTED
        return self.run_answer(self.get_run(run_id), status=code)


@documents.run_answer
class RunAnswerView(ApiView):
    serializer_class = RunSerializer

    def post(self, request: Request, run_id: str) -> Response:
        run = self.get_run(run_id)
        body = AnswerSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        answer_run(run, body.validated_data["answer"], key=body.validated_data.get("key"))
        return self.run_answer(self.get_run(run_id), status=status.HTTP_202_ACCEPTED)


@documents.run_retry
class RunRetryView(ApiView):
    serializer_class = RunSerializer

    def post(self, request: Request, run_id: str) -> Response:
        retry = retry_run(self.get_run(run_id))
        retry.journal_seq = ENQUEUED_SEQ  # type: ignore[attr-defined]
        return self.run_answer(retry, status=status.HTTP_202_ACCEPTED, located=True)


@documents.stream_token
class StreamTokenView(ApiView):
    serializer_class = RunSerializer

    def post(self, request: Request, run_id: str) -> Response:
        token = tokens.issue(self.get_run(run_id), request.user)
        return Response(
            {"token": token, "expires_in": tokens.LIFETIME_SECONDS},
            status=status.HTTP_201_CREATED,
            headers={"Cache-Control": "no-store"},
        )


@documents.run_events
class RunEventsView(ApiView):
    """The JSON form. The stream is a Channels consumer in front of it, under ASGI."""

    serializer_class = RunSerializer

    def get_authenticators(self) -> list[Any]:
        # Last: REST framework asks the first one how a refusal is worded.
        return [*super().get_authenticators(), tokens.StreamTokenAuthentication()]

    def get(self, request: Request, run_id: str) -> HttpResponse:
        if request.accepts("text/event-stream") and not request.accepts("application/json"):
            raise errors.NoStreamHere(
                "This server has no streams (WSGI); accept application/json.", "no_stream"
            )
        after = events.parse_cursor(request.query_params.get("from", "0"))
        if after is None:
            raise errors.malformed("from", "Must be a whole number, 0 or more.")
        limit = parse_limit(request, default=events.JSON_LIMIT, most=events.JSON_LIMIT)
        page = events.read_page(self.get_run(run_id).pk, after, limit)
        if page is None:
            raise errors.run_not_found()
        answer = HttpResponse(events.as_json(page), content_type="application/json")
        answer["Cache-Control"] = "no-cache"
        return answer
