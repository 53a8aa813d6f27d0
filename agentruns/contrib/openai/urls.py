"""`path("v1/", include("agentruns.contrib.openai.urls"))`."""

from __future__ import annotations

from django.urls import re_path

from ...urls import route
from . import views

app_name = "agentruns_openai"

RESPONSE = r"responses/(?P<response_id>[^/]+)"
CONVERSATION = r"conversations/(?P<conversation_id>[^/]+)"

urlpatterns = [
    route("responses", views.ResponsesView, "responses"),
    route(RESPONSE, views.ResponseView, "response"),
    route(f"{RESPONSE}/cancel", views.CancelView, "cancel"),
    route(f"{RESPONSE}/input_items", views.InputItemsView, "input-items"),
    route("conversations", views.ConversationsView, "conversations"),
    route(CONVERSATION, views.ConversationView, "conversation"),
    route(f"{CONVERSATION}/items", views.ItemsView, "items"),
    re_path(r"", views.UnsupportedView.as_view(), name="unsupported"),
]
