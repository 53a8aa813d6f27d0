"""Look at runs, conversations and messages. Nothing is edited here: rows change by verbs only.

What people and agents said, and tracebacks, are shown to those who hold the permissions
`read_words` and `read_traceback`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.db.models import Model
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from .models import AgentRun, Conversation, Message, RunEvent

LAST_EVENTS = 20
"""How many events the page of a run shows."""
WORDS = "agentruns.read_words"
TRACEBACK = "agentruns.read_traceback"


if TYPE_CHECKING:
    BaseAdmin = admin.ModelAdmin[Any]
else:
    BaseAdmin = admin.ModelAdmin


class ReadOnlyAdmin(BaseAdmin):
    """Newest first, by the time-ordered primary key: a table of any size needs no sort."""

    ordering = ("-id",)
    show_full_result_count = False
    list_per_page = 50
    fields_by_permission: dict[str, str] = {}
    """Fields that are left out for those without the permission."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def get_fields(self, request: HttpRequest, obj: Model | None = None) -> list[Any]:
        return [
            name for name in super().get_fields(request, obj) if self._may_see(request, str(name))
        ]

    def _may_see(self, request: HttpRequest, name: str) -> bool:
        permission = self.fields_by_permission.get(name)
        return permission is None or request.user.has_perm(permission)


@admin.register(Conversation)
class ConversationAdmin(ReadOnlyAdmin):
    list_display = ("id", "user", "last_turn", "created_at")
    list_select_related = ("user",)
    search_fields = ("=id",)
    fields_by_permission = {"title": WORDS, "metadata": WORDS}


@admin.register(Message)
class MessageAdmin(ReadOnlyAdmin):
    list_display = ("id", "conversation_id", "role", "status", "position", "created_at")
    list_filter = ("role", "status")
    search_fields = ("=id", "=conversation__id")
    fields_by_permission = {"content": WORDS, "parts": WORDS}


@admin.register(AgentRun)
class AgentRunAdmin(ReadOnlyAdmin):
    list_display = ("id", "agent", "status", "user", "attempt", "worker_id", "created_at")
    list_filter = ("status", "agent")
    list_select_related = ("user",)
    search_fields = ("=id", "=conversation__id")
    readonly_fields = ("last_events",)
    exclude = ("request_hash",)
    fields_by_permission = {
        "input": WORDS,
        "metadata": WORDS,
        "last_events": WORDS,
        "traceback": TRACEBACK,
    }

    @admin.display(description=f"last {LAST_EVENTS} events")
    def last_events(self, run: AgentRun) -> SafeString:
        newest = RunEvent.objects.filter(run_id=run.pk).order_by("-seq")[:LAST_EVENTS]
        rows = ((event.seq, event.type, json.dumps(event.payload)) for event in newest)
        items = format_html_join("", "<li>{} <b>{}</b> <code>{}</code></li>", rows)
        return format_html("<ul>{}</ul>", items)
