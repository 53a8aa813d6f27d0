"""Routes for the project's `asgi.py`: the streams, over HTTP and over WebSocket."""

from __future__ import annotations

from django.urls import URLPattern, re_path

from .consumers import run_events, run_socket

# Channels' router takes any ASGI application for a view.
http_urlpatterns: list[URLPattern] = [
    re_path(r"^runs/(?P<run_id>[^/]+)/events/?$", run_events),  # type: ignore[arg-type]
]
websocket_urlpatterns: list[URLPattern] = [
    re_path(r"^runs/(?P<run_id>[^/]+)/?$", run_socket),  # type: ignore[arg-type]
]
