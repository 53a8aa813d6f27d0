"""The demo's pages; everything that the chat does goes through the API."""

from __future__ import annotations

import os

from django.contrib.auth.decorators import login_required
from django.contrib.auth.views import LoginView
from django.db.models import OuterRef, QuerySet, Subquery
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.csrf import ensure_csrf_cookie

from agentruns.agents import agent_names
from agentruns.conf import get_config
from agentruns.models import Conversation, Message

from . import smollm
from .break_it import catalogue

SHOWN_CONVERSATIONS = 50


@login_required
@ensure_csrf_cookie  # the page's own requests carry it in a header
def chat(request: HttpRequest) -> HttpResponse:
    shown = {
        "agents": offered_agents(),
        "default_agent": get_config().DEFAULT_AGENT,
        "conversations": recent_conversations(request)[:SHOWN_CONVERSATIONS],
        "faults": catalogue(request),
    }
    response = render(request, "chat.html", shown)
    response["Content-Security-Policy"] = "default-src 'self'"
    return response


def recent_conversations(request: HttpRequest) -> QuerySet[Conversation]:
    opening = Message.objects.filter(conversation=OuterRef("pk")).order_by("created_at", "pk")
    mine: QuerySet[Conversation] = Conversation.objects.filter(user_id=request.user.pk)
    return mine.annotate(opening=Subquery(opening.values("content")[:1])).order_by("-pk")


def offered_agents() -> list[str]:
    """The agents that can answer here."""
    absent = {"smollm2"} if smollm.missing_sentence() else set()
    return sorted(set(agent_names()) - absent)


class SignIn(LoginView):
    """Signing in; in the demo, the user that it made is filled in."""

    redirect_authenticated_user = True
    extra_context = {
        "demo_user": os.environ.get("DEMO_USER", ""),
        "demo_password": os.environ.get("DEMO_PASSWORD", ""),
    }
