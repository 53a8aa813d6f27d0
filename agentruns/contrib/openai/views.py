"""The routes of the Responses API and of its conversations."""

from __future__ import annotations

from functools import partial
from typing import Any
from uuid import UUID

from django.http import HttpResponseBase
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from ...errors import conversation_not_found
from ...events import parse_cursor
from ...models import AgentRun, Conversation, Message
from ...stop import stop_run
from ..waiting import answer_at_end
from ..wires import WireView, check_streams, settled_seq, stream
from . import asked, items
from .asked import parse_metadata
from .errors import Refused, reshaped
from .responses import (
    conversation_id,
    fold_of,
    framed,
    message_id,
    parse_id,
    response_id,
    response_of,
)

MAX_LISTED = 100


class OpenAIView(WireView):
    def handle_exception(self, exc: Exception) -> Response:
        return reshaped(exc, super().handle_exception(exc))

    @property
    def body(self) -> dict[str, Any]:
        body = self.request.data  # an object, by the parser; a form's for a body without a type
        return body if isinstance(body, dict) else {}

    def find_run(self, text: Any, param: str = "response_id") -> AgentRun:
        found = parse_id("resp", text)
        run = self.runs().filter(pk=found).first() if found else None
        if run is None:
            raise NotFound(f"There is no response {str(text)[:100]!r} ({param}).", "not_found")
        self.check_object_permissions(self.request, run)
        return run

    def find_conversation_of(self, text: Any) -> Conversation:
        found = parse_id("conv", text)
        if found is None:
            raise conversation_not_found()
        return self.get_conversation(str(found))


class UnsupportedView(OpenAIView):
    """Every route that is not served."""

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        raise NotFound(
            f"{request.method} {request.path} is not supported: this server has responses "
            "(create, retrieve, stream, cancel, delete, input_items) and conversations.",
            "unsupported_route",
        )


class ResponsesView(OpenAIView):
    def post(self, request: Request) -> HttpResponseBase:
        wanted = asked.parse(self.body)
        if wanted.stream or not wanted.background:
            check_streams(request)
        run = self._enqueue(wanted)
        headers = {"Idempotent-Replayed": "true"} if run.replayed else {}
        if wanted.stream:
            return stream(run.pk, framed(fold_of(run)), headers=headers)
        if wanted.background:
            return Response(response_of(run), headers=headers)
        compose, settled = partial(_response_now, run.pk), settled_seq(run)
        return answer_at_end(run.pk, compose, settled=settled, headers=headers)

    def _enqueue(self, wanted: asked.Asked) -> AgentRun:
        conversation, previous = None, None
        if wanted.conversation is not None:
            conversation = self.find_conversation_of(wanted.conversation)
        if wanted.previous is not None:
            previous = self.find_run(wanted.previous, "previous_response_id")
        key = self.request.headers.get("Idempotency-Key")
        return asked.enqueue(wanted, self.request.user, conversation, previous, key)


class ResponseView(OpenAIView):
    def get(self, request: Request, response_id: str) -> HttpResponseBase:
        run = self.find_run(response_id)
        given = request.query_params
        if given.get("stream", "false").lower() not in ("true", "1"):
            return Response(response_of(run))
        after = _cursor(given.get("starting_after"))
        check_streams(request)
        return stream(run.pk, framed(fold_of(run), after))

    def delete(self, request: Request, response_id: str) -> Response:
        run = self.find_run(response_id)
        if not run.has_ended:
            raise Refused(
                f"The response is {run.status}; cancel it, and delete it when it has ended.",
                param="response_id",
                code="response_is_active",
            )
        deleted = {"id": _id(run), "object": "response", "deleted": True}
        run.delete()  # with its journal; what was said stays in the conversation
        return Response(deleted)


class CancelView(OpenAIView):
    def post(self, request: Request, response_id: str) -> Response:
        run = self.find_run(response_id)
        if not run.has_ended:
            stop_run(run)
        return Response(response_of(self.find_run(response_id)))


class InputItemsView(OpenAIView):
    def get(self, request: Request, response_id: str) -> Response:
        message = self.find_run(response_id).user_message
        return Response(_listed([_item(message)]))


class ConversationsView(OpenAIView):
    def post(self, request: Request) -> Response:
        if self.body.get("items"):
            raise Refused(
                "items are not supported: a conversation begins empty, and responses fill it.",
                param="items",
                code="unsupported_parameter",
            )
        conversation = Conversation.objects.create(
            user_id=request.user.pk, metadata=parse_metadata(self.body.get("metadata"))
        )
        conversation.refresh_from_db(fields=["created_at"])
        return Response(_conversation(conversation))


class ConversationView(OpenAIView):
    def get(self, request: Request, conversation_id: str) -> Response:
        return Response(_conversation(self.find_conversation_of(conversation_id)))

    def post(self, request: Request, conversation_id: str) -> Response:
        conversation = self.find_conversation_of(conversation_id)
        conversation.metadata = parse_metadata(self.body.get("metadata"))
        conversation.save(update_fields=["metadata"])
        return Response(_conversation(conversation))


class ItemsView(OpenAIView):
    """The transcript: newest first, unless asked for otherwise."""

    def get(self, request: Request, conversation_id: str) -> Response:
        conversation = self.find_conversation_of(conversation_id)
        said = Message.objects.filter(conversation_id=conversation.pk).transcript()
        found = [item for message in said for item in _items(message)]
        if request.query_params.get("order", "desc") == "desc":
            found.reverse()
        ids = [item["id"] for item in found]
        after = request.query_params.get("after")
        if after is not None:
            if after not in ids:
                raise Refused(
                    "after must be the id of an item of this conversation.", param="after"
                )
            found = found[ids.index(after) + 1 :]
        limit = _limit(request.query_params.get("limit", "20"))
        return Response(_listed(found[:limit], has_more=len(found) > limit))


def _response_now(run_id: UUID) -> dict[str, Any]:
    return response_of(AgentRun.objects.get(pk=run_id))


def _cursor(text: str | None) -> int:
    after = -1 if text is None else parse_cursor(text)
    if after is None:
        raise Refused("starting_after must be a whole number, 0 or more.", param="starting_after")
    return after


def _limit(text: str) -> int:
    number = parse_cursor(text)
    if number is None or not 1 <= number <= MAX_LISTED:
        raise Refused(f"limit must be a whole number from 1 to {MAX_LISTED}.", param="limit")
    return number


def _id(run: AgentRun) -> str:
    return response_id(run.pk)


def _conversation(conversation: Conversation) -> dict[str, Any]:
    return {
        "id": conversation_id(conversation.pk),
        "object": "conversation",
        "created_at": int(conversation.created_at.timestamp()),
        "metadata": conversation.metadata,
    }


def _listed(data: list[items.Item], *, has_more: bool = False) -> dict[str, Any]:
    ids = [item["id"] for item in data] or [""]
    return {
        "object": "list",
        "data": data,
        "first_id": ids[0],
        "last_id": ids[-1],
        "has_more": has_more,
    }


def _item(message: Message) -> items.Item:
    if message.role == "assistant":
        part = items.output_text(message.content)
        status = items.COMPLETED if message.status == "complete" else items.INCOMPLETE
        own = items.message(message_id(message.pk))
        return {**own, "status": status, "content": [part]}
    return items.user_message(message_id(message.pk), message.content)


def _items(message: Message) -> list[items.Item]:
    """A message of the transcript: the calls of a reply come before its text."""
    found = []
    for number, part in enumerate(message.parts):
        call_id, name = part["call_id"], part.get("name") or "tool"
        arguments = items.as_text(part.get("arguments") or {})
        has_ended = "result" in part or "error" in part
        call = items.function_call(f"fc_{message.pk.hex}_{number}", call_id, name)
        status = items.COMPLETED if has_ended else items.INCOMPLETE
        found.append({**call, "arguments": arguments, "status": status})
        if has_ended:
            output = {"error": part["error"]} if "error" in part else part["result"]
            text = items.as_text(output)
            own = f"fco_{message.pk.hex}_{number}"
            found.append(items.function_call_output(own, call_id, name, text))
    if message.content or not found:
        found.append(_item(message))
    return found
