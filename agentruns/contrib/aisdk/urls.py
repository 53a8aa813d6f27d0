"""`path("api/chat", include("agentruns.contrib.aisdk.urls"))`: the `api` of `useChat`."""

from __future__ import annotations

from django.urls import re_path

from . import views

app_name = "agentruns_aisdk"

CHAT = r"(?:/(?P<chat_id>.+))"

urlpatterns = [
    re_path(r"^(?:/)?\Z", views.StartView.as_view(), name="start"),
    re_path(rf"^{CHAT}/stream/?\Z", views.ResumeView.as_view(), name="resume"),
    re_path(rf"^{CHAT}/stop/?\Z", views.StopView.as_view(), name="stop"),
]
