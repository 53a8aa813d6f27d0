"""Conversations and messages. What was said is shown to those who may read it."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.contrib import admin
from django.db.models import Q
from django.http import HttpRequest, HttpResponse

from ..models import Conversation, Message
from .readonly import ReadOnlyAdmin, link, may
from .run_page import transcript

RUNS = 100
"""The newest runs that a conversation's page lists."""


@admin.register(Conversation)
class ConversationAdmin(ReadOnlyAdmin):
    list_select_related = ("user",)
    heavy = ("metadata",)
    search_help_text = "A conversation's id; a user's name, e-mail or id."

    def get_list_display(self, request: HttpRequest) -> Any:
        words = ("title",) if may(request, "read_words") else ()
        return ("id", *words, "user", "last_turn", "created_at")

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        words = ("title", "metadata") if may(request, "read_words") else ()
        return ("id", "user", "client_id", "last_turn", "created_at", *words)

    def found_by_id(self, wanted: UUID) -> Q:
        return Q(pk=wanted)

    def found_by_user(self, users: list[Any]) -> Q:
        return Q(user_id__in=users)

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        conversation = self.get_object(request, object_id)
        if conversation is not None and self.has_view_permission(request, conversation):
            runs = conversation.runs.order_by("-turn", "-attempt").defer("input", "traceback")
            words = may(request, "read_words")
            extra_context = {
                **(extra_context or {}),
                "runs": list(runs[:RUNS]),
                "runs_most": RUNS,
                "may_read_words": words,
                "transcript": transcript(conversation.pk) if words else None,
            }
        return super().change_view(request, object_id, form_url, extra_context)


@admin.register(Message)
class MessageAdmin(ReadOnlyAdmin):
    list_display = ("id", "role", "status", "of_conversation", "position", "created_at")
    list_filter = ("role", "status")
    heavy = ("content", "parts")
    search_help_text = "A message's or conversation's id; a user's name, e-mail or id."

    def get_queryset(self, request: HttpRequest) -> Any:
        return super().get_queryset(request).select_related("conversation")

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        words = ("content", "parts") if may(request, "read_words") else ()
        return ("id", "conversation", "role", "status", "position", "created_at", *words)

    def found_by_id(self, wanted: UUID) -> Q:
        return Q(pk=wanted) | Q(conversation_id=wanted)

    def found_by_user(self, users: list[Any]) -> Q:
        return Q(conversation__user_id__in=users)

    @admin.display(description="conversation")
    def of_conversation(self, message: Message) -> str:
        return link(Conversation, message.conversation_id, str(message.conversation_id)[-12:])
