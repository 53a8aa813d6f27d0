"""The HTTP routes: `path("api/", include("agentruns.urls"))`. Each works with and without a final
slash.
"""

from __future__ import annotations

from typing import Any

from django.urls import URLPattern, re_path

from .views import conversations, runs
from .views.schema import SchemaView

app_name = "agentruns"

RUN = r"runs/(?P<run_id>[^/]+)"
CONVERSATION = r"conversations/(?P<conversation_id>[^/]+)"


def route(pattern: str, view: type[Any], name: str) -> URLPattern:
    matched: URLPattern = re_path(rf"^{pattern}/?\Z", view.as_view(), name=name)
    return matched


urlpatterns = [
    route("runs", runs.RunsView, "runs"),
    route(RUN, runs.RunView, "run"),
    route(f"{RUN}/events", runs.RunEventsView, "run-events"),
    route(f"{RUN}/stop", runs.RunStopView, "run-stop"),
    route(f"{RUN}/answer", runs.RunAnswerView, "run-answer"),
    route(f"{RUN}/retry", runs.RunRetryView, "run-retry"),
    route(f"{RUN}/stream-token", runs.StreamTokenView, "run-stream-token"),
    route("conversations", conversations.ConversationsView, "conversations"),
    route(CONVERSATION, conversations.ConversationView, "conversation"),
    route(f"{CONVERSATION}/messages", conversations.MessagesView, "messages"),
    route(f"{CONVERSATION}/stop", conversations.ConversationStopView, "conversation-stop"),
    route("schema", SchemaView, "schema"),
]
