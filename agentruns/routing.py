"""Routes for the project's `asgi.py`: the streams, over HTTP and over WebSocket."""

from __future__ import annotations

from django.urls import URLPattern

http_urlpatterns: list[URLPattern] = []
websocket_urlpatterns: list[URLPattern] = []
