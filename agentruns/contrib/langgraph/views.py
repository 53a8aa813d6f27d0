"""What the routes of this wire share, and threads."""

from __future__ import annotations

import uuid
from typing import Any

from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from ...events import parse_cursor
from ...models import AgentRun, Conversation
from ...owned import owned, parse_id
from ..wires import WireView, find_conversation, open_conversation
from . import state
from .asked import WIRE, parse_metadata
from .errors import Busy, Invalid, reshaped, thread_not_found, unsupported

MAX_ID_CHARS = 255
MAX_LISTED = 100


class LangGraphView(WireView):
    def handle_exception(self, exc: Exception) -> Response:
        return reshaped(exc, super().handle_exception(exc))

    @property
    def body(self) -> dict[str, Any]:
        body = self.request.data  # an object, by the parser; a form's for a body without a type
        return body if isinstance(body, dict) else {}

    def get_thread(self, thread_id: str) -> Conversation:
        """The user's conversation of that thread id: the client's own, or the conversation's."""
        conversation = find_conversation(self.request.user, WIRE, thread_id)
        if conversation is None and (found := parse_id(thread_id)):
            rows = owned(Conversation, self.request.user)
            conversation = rows.filter(pk=found).first()
        if conversation is None:
            raise thread_not_found()
        self.check_object_permissions(self.request, conversation)
        return conversation

    def get_run_of(self, thread_id: str, run_id: str) -> AgentRun:
        thread, run = self.get_thread(thread_id), self.get_run(run_id)
        if run.conversation_id != thread.pk:
            raise NotFound("There is no such run in that thread.", "run_not_found")
        return run

    def limit(self, value: Any) -> int:
        number = parse_cursor(str(value))
        if number is None or not 1 <= number <= MAX_LISTED:
            raise Invalid("limit", f"must be a whole number from 1 to {MAX_LISTED}.")
        return number


class UnsupportedView(LangGraphView):
    """Every route that is not served."""

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        raise NotFound(
            f"{request.method} {request.path} is not supported: this server has threads (create, "
            "get, get_state, get_history) and runs (create, stream, wait, list, get, join, "
            "join_stream, cancel).",
            "unsupported_route",
        )


class ThreadsView(LangGraphView):
    def post(self, request: Request) -> Response:
        thread_id = checked_id(self.body.get("thread_id") or str(uuid.uuid4()))
        metadata = parse_metadata(self.body.get("metadata"))
        if_exists = self.body.get("if_exists") or "raise"
        if if_exists not in ("raise", "do_nothing"):
            raise Invalid("if_exists", "must be raise or do_nothing.")
        if self.body.get("supersteps"):
            raise unsupported("supersteps", "A thread begins empty.")
        try:
            found = self.get_thread(thread_id)
        except NotFound:
            found = open_conversation(request.user, WIRE, thread_id, metadata=metadata)
        else:
            if if_exists == "raise":
                raise Busy(
                    f"Thread {thread_id} exists. Use if_exists='do_nothing' to take it as it is.",
                    "thread_exists",
                )
        found.refresh_from_db()
        return Response(state.thread(found))


class ThreadView(LangGraphView):
    def get(self, request: Request, thread_id: str) -> Response:
        return Response(state.thread(self.get_thread(thread_id)))


class StateView(LangGraphView):
    def get(self, request: Request, thread_id: str) -> Response:
        return Response(state.state(self.get_thread(thread_id)))

    def post(self, request: Request, thread_id: str) -> Response:
        raise unsupported("update_state", "A thread changes by its runs.")


class HistoryView(LangGraphView):
    """Both forms: filters in a body, or none."""

    def get(self, request: Request, thread_id: str) -> Response:
        return self._answer(thread_id, request.query_params)

    def post(self, request: Request, thread_id: str) -> Response:
        return self._answer(thread_id, self.body)

    def _answer(self, thread_id: str, given: Any) -> Response:
        before = given.get("before")
        if isinstance(before, dict):  # a checkpoint, or a config that holds one
            before = before.get("configurable", before)
            before = before.get("checkpoint_id") if isinstance(before, dict) else None
        limit = self.limit(given.get("limit") or 10)
        return Response(state.states(self.get_thread(thread_id), limit, before))


def checked_id(value: Any) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_ID_CHARS:
        raise Invalid("thread_id", f"must be a text of 1 to {MAX_ID_CHARS} characters.")
    if "/" in value or not value.isprintable():
        raise Invalid("thread_id", "must have printable characters only, and no slash.")
    return value
