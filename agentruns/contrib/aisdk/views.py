"""The HTTP transport of `useChat`: start, resume, stop."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from django.http import HttpResponse, HttpResponseBase
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response

from ...errors import conversation_not_found
from ...models import AgentRun
from ..wires import Event, WireView, check_streams, sentence, sse, stop, stream
from .chat import WIRE, chat_id_of, running, start
from .fold import Fold

HEADERS = {"x-vercel-ai-ui-message-stream": "v1"}
DONE = "data: [DONE]\n\n"


class ChatView(WireView):
    def handle_exception(self, exc: Exception) -> Response:
        """The client shows the body of a failed request word by word."""
        response = super().handle_exception(exc)
        words = sentence(response.data)
        plain = HttpResponse(words, status=response.status_code, content_type="text/plain")
        for name in ("WWW-Authenticate", "Retry-After"):
            if name in response.headers:
                plain[name] = response.headers[name]
        return plain  # type: ignore[return-value]


class StartView(ChatView):
    def post(self, request: Request) -> HttpResponseBase:
        check_streams(request)
        self.find_conversation(WIRE, chat_id_of(request.data.get("id")))  # type: ignore[union-attr]
        return replay(start(request.user, request.data, request.headers.get("Idempotency-Key")))


class ResumeView(ChatView):
    def get(self, request: Request, chat_id: str) -> HttpResponseBase:
        check_streams(request)
        conversation = self.find_conversation(WIRE, chat_id_of(chat_id))
        run = running(conversation) if conversation else None
        return replay(run) if run else HttpResponse(status=status.HTTP_204_NO_CONTENT)


class StopView(ChatView):
    def post(self, request: Request, chat_id: str) -> HttpResponseBase:
        conversation = self.find_conversation(WIRE, chat_id_of(chat_id))
        if conversation is None:
            raise conversation_not_found()
        return Response(stop(conversation), status=status.HTTP_202_ACCEPTED)


def replay(run: AgentRun) -> HttpResponseBase:
    """The run's message from its start: the client has no cursor, and knows the message's id."""
    headers = HEADERS | ({"Idempotent-Replayed": "true"} if run.replayed else {})
    return stream(run.pk, framed(Fold(run.pk, run.reply_message_id)), headers=headers)


def framed(fold: Fold) -> Callable[[Event], Iterator[str]]:
    def frames(event: Event) -> Iterator[str]:
        yield from map(sse, fold(event))
        if event["type"] == "complete":
            yield DONE

    return frames
