"""HTTP routes of the demo project that Django itself answers."""

from __future__ import annotations

from django.contrib import admin
from django.contrib.auth.views import LogoutView
from django.urls import include, path
from django.views.generic import TemplateView

from .chat.break_it import break_it, run_row
from .chat.views import SignIn, chat

urlpatterns = [
    path("", chat, name="chat"),
    path("admin/", admin.site.urls),
    path("agui", include("agentruns.contrib.agui.urls")),
    path("api/", include("agentruns.urls")),
    path("api/chat", include("agentruns.contrib.aisdk.urls")),
    path("break/row", run_row, name="run_row"),
    path("break/<str:name>", break_it, name="break_it"),
    path("docs/", TemplateView.as_view(template_name="docs.html"), name="docs"),
    path("lg/", include("agentruns.contrib.langgraph.urls")),
    path("login/", SignIn.as_view(), name="login"),
    path("logout/", LogoutView.as_view(), name="logout"),
    path("v1/", include("agentruns.contrib.openai.urls")),
]
