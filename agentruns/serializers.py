"""What comes in and what goes out."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.utils import timezone
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from .agents import LIMIT_NAMES, MOST_COUNTED, MOST_SECONDS, Limits, resolve
from .answer import check_answer
from .enqueue import check_content, check_limits, check_metadata
from .events import JSON_LIMIT
from .exceptions import InvalidAnswer, InvalidContent, UnknownAgent
from .models import AgentRun, MessageRole, MessageStatus, RunStatus
from .owned import parse_id

MAX_TITLE_CHARS = 1000
OBJECT = {"type": "object", "additionalProperties": {}}
FAILURE = {
    "type": "object",
    "nullable": True,
    "properties": {"code": {"type": "string"}, "message": {"type": "string"}},
    "required": ["code", "message"],
}
LIMIT = {"type": "number", "nullable": True, "minimum": 0, "exclusiveMinimum": True}
LIMITS = {
    "type": "object",
    "properties": {
        name: {**LIMIT, "maximum": MOST_SECONDS if name.endswith("_seconds") else MOST_COUNTED}
        for name in LIMIT_NAMES
    },
    "additionalProperties": False,
}


class Id(serializers.UUIDField):
    """A UUID in its usual 36 characters; nothing that could be taken for one."""

    def to_internal_value(self, data: Any) -> UUID:
        found = parse_id(data)
        if found is None:
            self.fail("invalid", value=data)
        return found


class Text(serializers.CharField):
    """A text as it is: nothing is trimmed, and numbers are not texts."""

    def __init__(self, **options: Any) -> None:
        super().__init__(trim_whitespace=False, **options)

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("invalid")
        return super().to_internal_value(data)


class Moment(serializers.DateTimeField):
    """A time in UTC, ISO 8601 with microseconds, whatever the project's settings are."""

    def to_representation(self, value: datetime) -> str:
        if timezone.is_naive(value):
            value = timezone.make_aware(value, timezone.get_default_timezone())
        text = value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds")
        return f"{text}Z"


@extend_schema_field(OBJECT)
class Metadata(serializers.JSONField):
    """An object of the client's own."""

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        try:
            check_metadata(data)
        except InvalidContent as error:
            raise serializers.ValidationError(str(error)) from None
        return data  # type: ignore[no-any-return]


@extend_schema_field(LIMITS)
class LimitsField(serializers.JSONField):
    """What a request allows its run to take."""

    def to_internal_value(self, data: Any) -> Limits:  # type: ignore[override]
        if not isinstance(data, dict):
            kind = type(data).__name__
            names = ", ".join(LIMIT_NAMES)
            raise serializers.ValidationError(
                f"limits must be an object with any of {names}, not {kind}."
            )
        try:
            return check_limits(data)
        except InvalidContent as error:
            raise serializers.ValidationError(str(error)) from None


@extend_schema_field({})
class AnswerField(serializers.JSONField):
    """Anything that JSON carries."""

    def to_internal_value(self, data: Any) -> Any:
        try:
            check_answer(data)
        except InvalidAnswer as error:
            raise serializers.ValidationError(str(error)) from None
        return data


@extend_schema_field(FAILURE)
class Failure(serializers.JSONField):
    """`{"code", "message"}` of a failed run, else null."""


@extend_schema_field({"type": "array", "items": OBJECT})
class Parts(serializers.JSONField):
    """Tool calls in call order: `type`, `call_id`, `name`, `arguments`, `result` or `error`."""


class RunRequestSerializer(serializers.Serializer[Any]):
    content = Text(help_text="What the user says.")
    conversation_id = Id(
        required=False, allow_null=True, help_text="Left out or null: a conversation is opened."
    )
    agent = Text(required=False, allow_null=True, help_text="Left out or null: the default agent.")
    metadata = Metadata(required=False, allow_null=True, help_text="Kept and shown with the run.")
    draft_id = Id(
        required=False,
        allow_null=True,
        help_text="A draft of that conversation, whose message becomes this turn's.",
    )
    limits = LimitsField(
        required=False,
        allow_null=True,
        help_text="What the run may take where its agent's limits allow more.",
    )

    def validate_content(self, content: str) -> str:
        try:
            check_content(content)
        except InvalidContent as error:
            raise serializers.ValidationError(str(error)) from None
        return content

    def validate_agent(self, agent: str | None) -> str | None:
        try:
            resolve(agent)
        except UnknownAgent as error:
            raise serializers.ValidationError(str(error)) from None
        return agent


class AnswerSerializer(serializers.Serializer[Any]):
    answer = AnswerField(allow_null=True, help_text="What the agent is given: any JSON.")
    key = Text(
        required=False,
        allow_null=True,
        help_text="Of the question that is meant; left out or null: the one that the run waits "
        "with.",
    )


class ConversationRequestSerializer(serializers.Serializer[Any]):
    title = Text(required=False, allow_blank=True, max_length=MAX_TITLE_CHARS)
    metadata = Metadata(required=False, allow_null=True)

    def validate_metadata(self, metadata: Mapping[str, Any] | None) -> Mapping[str, Any]:
        return {} if metadata is None else metadata


class RunSerializer(serializers.Serializer[AgentRun]):
    run_id = serializers.UUIDField(source="id")
    conversation_id = serializers.UUIDField()
    user_message_id = serializers.UUIDField()
    reply_message_id = serializers.UUIDField(
        help_text="The id that the reply will have; the message appears when the run ends."
    )
    agent = serializers.CharField()
    status = serializers.ChoiceField(RunStatus.choices)
    cancel_requested = serializers.BooleanField()
    error = Failure(allow_null=True)
    attempt = serializers.IntegerField()
    retry_of = serializers.UUIDField(source="retry_of_id", allow_null=True)
    last_seq = serializers.SerializerMethodField(
        help_text="Seq of `complete` once the run has ended, else of the newest event."
    )
    metadata = Metadata()
    created_at = Moment()
    started_at = Moment(allow_null=True)
    finished_at = Moment(allow_null=True)

    def get_last_seq(self, run: AgentRun) -> int:
        return run.last_seq if run.last_seq is not None else getattr(run, "journal_seq", 0)


class MessageSerializer(serializers.Serializer[Any]):
    message_id = serializers.UUIDField(source="id")
    conversation_id = serializers.UUIDField()
    role = serializers.ChoiceField(MessageRole.choices)
    content = serializers.CharField()
    parts = Parts()
    status = serializers.ChoiceField(MessageStatus.choices)
    position = serializers.IntegerField(
        allow_null=True, help_text="Place in the transcript; null for queued messages and drafts."
    )
    created_at = Moment()


class MessagesSerializer(serializers.Serializer[Any]):
    results = MessageSerializer(many=True)


class ConversationSerializer(serializers.Serializer[Any]):
    conversation_id = serializers.UUIDField(source="id")
    title = serializers.CharField()
    metadata = Metadata()
    created_at = Moment()


class ConversationDetailSerializer(ConversationSerializer):
    active_runs = RunSerializer(many=True, help_text="Those that have not ended, in turn order.")
    drafts = MessageSerializer(many=True, help_text="Messages handed back by a stop.")


class DraftSerializer(serializers.Serializer[Any]):
    message_id = serializers.UUIDField(source="id")
    content = serializers.CharField()


class StoppedSerializer(serializers.Serializer[Any]):
    cancelled = serializers.ListField(
        child=serializers.UUIDField(),
        help_text="Runs that ended at once: they had not started, or waited for an answer.",
    )
    stopping = serializers.ListField(
        child=serializers.UUIDField(), help_text="Running runs that are asked to end."
    )
    drafts = DraftSerializer(many=True, help_text="The messages of the cancelled runs.")


class StreamTokenSerializer(serializers.Serializer[Any]):
    token = serializers.CharField()
    expires_in = serializers.IntegerField(help_text="Seconds.")


class EventSerializer(serializers.Serializer[Any]):
    type = serializers.CharField()
    seq = serializers.IntegerField(min_value=1)


class EventsSerializer(serializers.Serializer[Any]):
    run_id = serializers.UUIDField()
    status = serializers.CharField(help_text="The run's status when this was read.")
    events = EventSerializer(many=True, help_text=f"At most {JSON_LIMIT}.")
    cursor = serializers.IntegerField(help_text="The next `from`.")
    last_seq = serializers.IntegerField()
    done = serializers.BooleanField(help_text="Nothing follows, ever.")


class ErrorSerializer(serializers.Serializer[Any]):
    detail = serializers.CharField()
    code = serializers.CharField()
