"""`path("lg/", include("agentruns.contrib.langgraph.urls"))`."""

from __future__ import annotations

from django.urls import re_path

from ...urls import route
from . import runs, views

app_name = "agentruns_langgraph"

THREAD = r"threads/(?P<thread_id>[^/]+)"
RUN = rf"{THREAD}/runs/(?P<run_id>[^/]+)"

urlpatterns = [
    route("threads", views.ThreadsView, "threads"),
    route(THREAD, views.ThreadView, "thread"),
    route(f"{THREAD}/state", views.StateView, "state"),
    route(f"{THREAD}/history", views.HistoryView, "history"),
    route(f"{THREAD}/runs", runs.RunsView, "runs"),
    route(f"{THREAD}/runs/stream", runs.StreamedRunsView, "runs-stream"),
    route(f"{THREAD}/runs/wait", runs.AwaitedRunsView, "runs-wait"),
    route(RUN, runs.RunView, "run"),
    route(f"{RUN}/stream", runs.StreamView, "run-stream"),
    route(f"{RUN}/join", runs.JoinView, "run-join"),
    route(f"{RUN}/cancel", runs.CancelView, "run-cancel"),
    route("runs", runs.CreatingView, "stateless"),
    route("runs/stream", runs.StreamedRunsView, "stateless-stream"),
    route("runs/wait", runs.AwaitedRunsView, "stateless-wait"),
    re_path(r"", views.UnsupportedView.as_view(), name="unsupported"),
]
