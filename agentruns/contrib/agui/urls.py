"""`path("agui", include("agentruns.contrib.agui.urls"))`: the `url` of an `HttpAgent`.

At that address the default agent runs; at `agents/NAME` below it, another one.
"""

from __future__ import annotations

from django.urls import re_path

from . import views

app_name = "agentruns_agui"

AGENT = r"(?:/agents/(?P<agent>[^/]+))?"

urlpatterns = [
    re_path(rf"^{AGENT}/?\Z", views.RunView.as_view(), name="run"),
    re_path(rf"^{AGENT}(?:/connect)/?\Z", views.ConnectView.as_view(), name="connect"),
    re_path(rf"^{AGENT}(?:/stop/(?P<thread_id>.+?))/?\Z", views.StopView.as_view(), name="stop"),
]
