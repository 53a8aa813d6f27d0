"""Let a viewer in: who is asking, may they see this run, is the cursor one.

The request is built from the connection's scope and goes through a REST framework view, so that a
stream knows the same authentication, permissions, throttles and errors as every other route.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from typing import Any
from uuid import UUID

from django.contrib.auth.middleware import AuthenticationMiddleware
from django.contrib.sessions.middleware import SessionMiddleware
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse
from rest_framework.exceptions import APIException
from rest_framework.request import Request, clone_request
from rest_framework.response import Response

from .conf import middleware_like
from .db import DATABASE_TROUBLE
from .errors import handle, malformed
from .events import parse_cursor, read_page
from .models import AgentRun
from .tokens import StreamTokenAuthentication
from .views.runs import RunEventsView


@dataclass(frozen=True, slots=True)
class Admission:
    """A viewer who is let in."""

    run_id: UUID
    after: int
    """The cursor: seq of the last event that the viewer has."""
    by_token: bool
    may_stop: bool
    """Whether the project's permissions let this viewer change the run as well."""


class AdmissionView(RunEventsView):
    """Answers 200 or 204 to a viewer who may see the run, else as the JSON form does."""

    after = 0
    may_stop = False

    def get_exception_handler(self) -> Callable[..., Response | None]:
        return _handle

    def get(self, request: Request, run_id: str) -> HttpResponse:
        run = self.get_run(run_id)
        # A client that comes back repeats its first URL: what it saw last is in the header.
        cursor = request.headers.get("Last-Event-ID") or request.query_params.get("from", "0")
        after = parse_cursor(cursor)
        if after is None:
            raise malformed("from", "Must be a whole number, 0 or more.")
        self.after = after
        self.may_stop = self._may_change(run)
        page = read_page(run.pk, after, 1)
        is_past_the_end = page is None or (page.done and not page.frames)
        return HttpResponse(status=204 if is_past_the_end else 200)

    def _may_change(self, run: AgentRun) -> bool:
        change = clone_request(self.request, "POST")
        try:
            self.check_permissions(change)
            self.check_object_permissions(change, run)
        except APIException:
            return False
        return True


def admit(scope: dict[str, Any]) -> Admission | HttpResponse:
    """Let the viewer behind this ASGI scope in, or the response that says why not.

    204 for a run that has ended and of which the viewer has everything.
    """
    request = request_of(scope)
    view = AdmissionView()
    run_id = scope["url_route"]["kwargs"]["run_id"]
    view.setup(request, run_id=run_id)
    response: HttpResponse = view.dispatch(request, run_id=run_id)  # type: ignore[assignment]
    if response.status_code != 200:
        if isinstance(response, Response):
            response.render()
        return response
    by_token = isinstance(view.request.successful_authenticator, StreamTokenAuthentication)
    return Admission(UUID(run_id), view.after, by_token, view.may_stop)


def _handle(error: Exception, context: dict[str, Any]) -> Response | None:
    """Errors as on every route, but a database that is away is for the caller to wait for."""
    return None if isinstance(error, DATABASE_TROUBLE) else handle(error, context)


def request_of(scope: dict[str, Any]) -> HttpRequest:
    """The connection's handshake as a request, with the user of its session."""
    scheme = scope.get("scheme", "http").replace("ws", "http", 1)
    request = ASGIRequest({**scope, "type": "http", "method": "GET", "scheme": scheme}, BytesIO())
    for base in (SessionMiddleware, AuthenticationMiddleware):
        if (middleware := middleware_like(base)) is not None:
            middleware(_nothing).process_request(request)
    return request


def _nothing(request: HttpRequest) -> HttpResponse:
    return HttpResponse()
