"""HTTP routes of the demo project that Django itself answers."""

from __future__ import annotations

from django.contrib import admin
from django.contrib.auth.views import LoginView, LogoutView
from django.urls import include, path

from .chat.views import chat

urlpatterns = [
    path("", chat, name="chat"),
    path("admin/", admin.site.urls),
    path("api/", include("agentruns.urls")),
    path("login/", LoginView.as_view(), name="login"),
    path("logout/", LogoutView.as_view(), name="logout"),
]
