"""The demo's chat page."""

from __future__ import annotations

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.csrf import ensure_csrf_cookie

from agentruns.agents import agent_names


@login_required
@ensure_csrf_cookie  # the page's own requests carry it in a header
def chat(request: HttpRequest) -> HttpResponse:
    return render(request, "chat.html", {"agents": agent_names()})
