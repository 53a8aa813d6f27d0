"""The messages of a thread as an AG-UI client holds them.

Those of earlier turns come from the transcript; those of the turn that is attached to are what its
events make of them, as the client itself applies events.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any
from uuid import UUID

from ...models import AgentRun, Conversation, Message, MessageRole, MessageStatus
from .fold import Frame, outcome_text

WIRE = "agui"


class Messages:
    """Messages made of events, in the client's order."""

    def __init__(self) -> None:
        self._messages: list[Frame] = []
        self._owner: dict[str, Frame] = {}
        """The message of each call."""

    def __iter__(self) -> Iterator[Frame]:
        return iter(self._messages)

    def apply(self, frame: Frame) -> None:
        match frame["type"]:
            case "TEXT_MESSAGE_START":
                self._message(frame["messageId"], "assistant", content="")
            case "REASONING_MESSAGE_START":
                self._message(frame["messageId"], "reasoning", content="")
            case "TEXT_MESSAGE_CONTENT" | "REASONING_MESSAGE_CONTENT":
                message = self._message(frame["messageId"], "assistant")
                message["content"] += frame["delta"]
            case "TOOL_CALL_START":
                self._start_call(frame)
            case "TOOL_CALL_ARGS":
                call_id = frame["toolCallId"]
                calls = self._owner[call_id]["toolCalls"]
                call = next(call for call in calls if call["id"] == call_id)
                call["function"]["arguments"] += frame["delta"]
            case "TOOL_CALL_RESULT":
                self._add_result(frame)

    def _message(self, message_id: str, role: str, **fields: Any) -> Frame:
        for message in self._messages:
            if message["id"] == message_id:
                return message
        self._messages.append({"id": message_id, "role": role, **fields})
        return self._messages[-1]

    def _start_call(self, frame: Frame) -> None:
        message = self._message(frame["parentMessageId"], "assistant")
        call = tool_call(frame["toolCallId"], frame["toolCallName"], "")
        message.setdefault("toolCalls", []).append(call)
        self._owner[frame["toolCallId"]] = message

    def _add_result(self, frame: Frame) -> None:
        # Behind the message of its call, and the results that are there already.
        at = self._messages.index(self._owner[frame["toolCallId"]]) + 1
        while at < len(self._messages) and self._messages[at]["role"] == "tool":
            at += 1
        result = {name: frame[name] for name in ("toolCallId", "role", "content")}
        self._messages.insert(at, {"id": frame["messageId"], **result})


def before(run: AgentRun) -> list[Frame]:
    """What was said before the run's reply, its own message included."""
    own = Message.objects.get(pk=run.user_message_id)
    earlier = Message.objects.filter(conversation_id=run.conversation_id).transcript()
    if own.position is not None:
        earlier = earlier.filter(position__lt=own.position)
    return list(_listed([*earlier, own], _client_ids(run.conversation_id)))


def after(run: AgentRun) -> list[Frame]:
    """Messages that wait for their turn."""
    waiting = Message.objects.filter(
        conversation_id=run.conversation_id, status=MessageStatus.QUEUED
    ).exclude(pk=run.user_message_id)
    return list(_listed(waiting.order_by("pk"), _client_ids(run.conversation_id)))


def whole(conversation: Conversation) -> list[Frame]:
    """All that was said."""
    said = Message.objects.filter(conversation_id=conversation.pk).transcript()
    return list(_listed(said, _client_ids(conversation.pk)))


def _client_ids(conversation_id: UUID) -> dict[UUID, str]:
    """The ids that clients gave to the users' messages."""
    given = AgentRun.objects.filter(conversation_id=conversation_id).values_list(
        "user_message_id", f"metadata__{WIRE}__messageId"
    )
    return {pk: client_id for pk, client_id in given if client_id}


def _listed(messages: Iterable[Message], client_ids: dict[UUID, str]) -> Iterator[Frame]:
    for message in messages:
        message_id = client_ids.get(message.pk, str(message.pk))
        match message.role:
            case MessageRole.USER | MessageRole.SYSTEM:
                yield {"id": message_id, "role": message.role, "content": message.content}
            case MessageRole.ASSISTANT:
                yield from _reply(message)


def _reply(message: Message) -> Iterator[Frame]:
    reply: Frame = {"id": str(message.pk), "role": "assistant", "content": message.content}
    calls = [part for part in message.parts if part.get("type") == "tool_call"]
    if calls:
        reply["toolCalls"] = [
            tool_call(call["call_id"], call.get("name", ""), json.dumps(call.get("arguments")))
            for call in calls
        ]
    yield reply
    for call in calls:
        if "result" in call or "error" in call:
            result = {"toolCallId": call["call_id"], "content": outcome_text(call)}
            yield {"id": f"{message.pk}-{call['call_id']}", "role": "tool", **result}


def tool_call(call_id: str, name: str, arguments: str) -> Frame:
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}
