"""What the OpenAPI document says about each route."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from drf_spectacular import utils
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import (
    OpenApiExample,
    OpenApiParameter,
    OpenApiRequest,
    OpenApiResponse,
    extend_schema_view,
)

from ..events import JSON_LIMIT
from ..models import RunStatus
from ..serializers import (
    AnswerSerializer,
    ConversationDetailSerializer,
    ConversationRequestSerializer,
    ConversationSerializer,
    ErrorSerializer,
    EventsSerializer,
    MessagesSerializer,
    RunRequestSerializer,
    RunSerializer,
    StoppedSerializer,
    StreamTokenSerializer,
)
from . import examples


def extend_schema(**options: Any) -> Callable[[Any], Any]:
    """drf-spectacular's, on its own base whatever the project's `DEFAULT_SCHEMA_CLASS` is."""
    decorate = utils.extend_schema(**options)

    def described(method: Any) -> Any:
        method.schema = AutoSchema()
        return decorate(method)

    return described


FIELD_MESSAGES = {
    "type": "object",
    "description": "Field names with their messages, or `detail` and `code`.",
    "additionalProperties": {
        "oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]
    },
}

RUN_ID = OpenApiParameter("run_id", OpenApiTypes.UUID, OpenApiParameter.PATH)
CONVERSATION_ID = OpenApiParameter("conversation_id", OpenApiTypes.UUID, OpenApiParameter.PATH)
FROM = OpenApiParameter(
    "from",
    {"type": "integer", "minimum": 0, "default": 0},
    description="Only what follows this seq.",
)
LIMIT = OpenApiParameter(
    "limit",
    {"type": "integer", "minimum": 1, "default": JSON_LIMIT},
    description=f"JSON form only; more than {JSON_LIMIT} count as {JSON_LIMIT}.",
)
TOKEN = OpenApiParameter(
    "token", description="A stream token, in place of other credentials; for this route only."
)
LAST_EVENT_ID = OpenApiParameter(
    "Last-Event-ID",
    {"type": "integer", "minimum": 0},
    OpenApiParameter.HEADER,
    description="Stream form only; wins over `from`.",
)
IDEMPOTENCY_KEY = OpenApiParameter(
    "Idempotency-Key",
    {"type": "string", "minLength": 1, "maxLength": 255},
    OpenApiParameter.HEADER,
    description="The same key with the same body gives the same run; with another body, 422.",
)
REPLAYED = OpenApiParameter(
    "Idempotent-Replayed",
    {"type": "string", "enum": ["true"]},
    OpenApiParameter.HEADER,
    response=[202],
    description="Present where the key was used before: this is that run.",
)
LOCATION = OpenApiParameter(
    "Location",
    {"type": "string", "format": "uri-reference"},
    OpenApiParameter.HEADER,
    response=[202],
    description="Path of the run.",
)
RUNS_FILTERS = [
    OpenApiParameter("conversation", OpenApiTypes.UUID, description="Of this conversation."),
    OpenApiParameter("status", enum=RunStatus.values, description="In this status."),
]


def error(code: str, detail: str) -> OpenApiResponse:
    example = OpenApiExample(code, {"detail": detail, "code": code}, response_only=True)
    return OpenApiResponse(ErrorSerializer, description=detail, examples=[example])


def answer(serializer: Any, description: str, *shown: OpenApiExample) -> OpenApiResponse:
    return OpenApiResponse(serializer, description=description, examples=list(shown))


INVALID = OpenApiResponse(
    FIELD_MESSAGES, description="Something in the request is wrong.", examples=[examples.INVALID]
)
REFUSED = {
    401: error("not_authenticated", "Authentication credentials were not provided."),
    403: error("permission_denied", "You do not have permission to perform this action."),
}
RUN_MISSING = {404: error("run_not_found", "There is no such run.")}
CONVERSATION_MISSING = {404: error("conversation_not_found", "There is no such conversation.")}
THROTTLED = {429: error("throttled", "Request was throttled.")}

runs = extend_schema_view(
    get=extend_schema(
        operation_id="list_runs",
        summary="List runs, newest first",
        parameters=RUNS_FILTERS,
        responses={200: RunSerializer(many=True), 400: INVALID, **REFUSED, **CONVERSATION_MISSING},
    ),
    post=extend_schema(
        operation_id="enqueue_run",
        summary="Enqueue a run",
        description="Records the message and the run; a worker runs it in its turn.",
        parameters=[IDEMPOTENCY_KEY, LOCATION, REPLAYED],
        request=OpenApiRequest(RunRequestSerializer, examples=examples.REQUESTS),
        responses={
            202: answer(RunSerializer, "The run, queued.", examples.QUEUED),
            400: INVALID,
            **REFUSED,
            404: error(
                "conversation_not_found", "There is no such conversation, or no such draft."
            ),
            422: error("idempotency_mismatch", "The key was used for another request."),
            429: error("queue_full", "Too many turns of the conversation wait."),
        },
    ),
)
run = extend_schema_view(
    get=extend_schema(
        operation_id="get_run",
        summary="Look at a run",
        parameters=[RUN_ID],
        responses={200: answer(RunSerializer, "The run."), **REFUSED, **RUN_MISSING},
    )
)
run_stop = extend_schema_view(
    post=extend_schema(
        operation_id="stop_run",
        summary="Stop a run",
        description="A queued run is cancelled at once and its message becomes a draft; a running "
        "one is asked to end; one that waits for an answer ends at once, with what it had said.",
        parameters=[RUN_ID],
        request=None,
        responses={
            202: answer(RunSerializer, "The run, cancelled or with `cancel_requested`."),
            200: answer(RunSerializer, "The run had ended before; it is unchanged."),
            **REFUSED,
            **RUN_MISSING,
        },
    )
)
run_answer = extend_schema_view(
    post=extend_schema(
        operation_id="answer_run",
        summary="Answer the question of a run that waits",
        description="The run goes on, ahead of its conversation's later turns. Each question is "
        "answered once.",
        parameters=[RUN_ID],
        request=OpenApiRequest(AnswerSerializer, examples=[examples.ANSWER]),
        responses={
            202: answer(RunSerializer, "The run, queued to go on."),
            400: INVALID,
            **REFUSED,
            **RUN_MISSING,
            409: error("already_answered", "The question was answered already."),
            410: error("input_expired", "The question has expired."),
        },
    )
)
run_retry = extend_schema_view(
    post=extend_schema(
        operation_id="retry_run",
        summary="Retry a run",
        description="A new run of the same message, in the place of the turn that it retries.",
        parameters=[RUN_ID, LOCATION],
        request=None,
        responses={
            202: answer(RunSerializer, "The new run."),
            **REFUSED,
            **RUN_MISSING,
            409: error(
                "not_retryable",
                "The run has not failed or been stopped, or is not the latest turn.",
            ),
        },
    )
)
stream_token = extend_schema_view(
    post=extend_schema(
        operation_id="create_stream_token",
        summary="Get a token for the run's stream",
        description="For clients that cannot set headers: `EventSource`, `WebSocket`. The token "
        "opens the stream of this run, as often as needed, until it expires.",
        parameters=[RUN_ID],
        request=None,
        responses={201: answer(StreamTokenSerializer, "The token."), **REFUSED, **RUN_MISSING},
    )
)
run_events = extend_schema_view(
    get=extend_schema(
        operation_id="stream_events",
        summary="Follow a run",
        description=examples.STREAM,
        parameters=[RUN_ID, FROM, LIMIT, TOKEN, LAST_EVENT_ID],
        responses={
            (200, "application/json"): answer(
                EventsSerializer, "A part of the journal.", examples.EVENTS
            ),
            (200, "text/event-stream"): answer(
                OpenApiTypes.STR, "The events as they happen.", examples.FRAMES
            ),
            204: OpenApiResponse(
                description="Stream form: the run has ended and nothing follows the cursor."
            ),
            (400, "application/json"): INVALID,
            (401, "application/json"): REFUSED[401],
            (403, "application/json"): REFUSED[403],
            (404, "application/json"): RUN_MISSING[404],
            (406, "application/json"): error("no_stream", "This server has no streams (WSGI)."),
            (503, "application/json"): error("unavailable", "The database cannot be reached."),
        },
    )
)
conversations = extend_schema_view(
    get=extend_schema(
        operation_id="list_conversations",
        summary="List conversations, newest first",
        responses={200: ConversationSerializer(many=True), 400: INVALID, **REFUSED},
    ),
    post=extend_schema(
        operation_id="open_conversation",
        summary="Open a conversation",
        request=OpenApiRequest(ConversationRequestSerializer, examples=[examples.OPENING]),
        responses={
            201: answer(ConversationSerializer, "The conversation."),
            400: INVALID,
            **REFUSED,
        },
    ),
)
conversation = extend_schema_view(
    get=extend_schema(
        operation_id="get_conversation",
        summary="Look at a conversation",
        description="With the runs that a viewer should follow, and the messages handed back.",
        parameters=[CONVERSATION_ID],
        responses={
            200: answer(ConversationDetailSerializer, "The conversation."),
            **REFUSED,
            **CONVERSATION_MISSING,
        },
    )
)
messages = extend_schema_view(
    get=extend_schema(
        operation_id="list_messages",
        summary="Read a conversation",
        description="The transcript by `position`, then queued messages by turn, then drafts.",
        parameters=[CONVERSATION_ID],
        responses={
            200: answer(MessagesSerializer, "All messages."),
            **REFUSED,
            **CONVERSATION_MISSING,
        },
    )
)
conversation_stop = extend_schema_view(
    post=extend_schema(
        operation_id="stop_conversation",
        summary="Stop a conversation",
        description="No turn that is queued now ever starts; the running one is asked to end.",
        parameters=[CONVERSATION_ID],
        request=None,
        responses={
            202: answer(StoppedSerializer, "What was stopped.", examples.STOPPED),
            **REFUSED,
            **CONVERSATION_MISSING,
        },
    )
)
