"""Routes for the project's `asgi.py`: `path("ws/chat/", URLRouter(websocket_urlpatterns))`."""

from __future__ import annotations

from django.urls import URLPattern, re_path

from .socket import chat_socket

# Channels' router takes any ASGI application for a view.
websocket_urlpatterns: list[URLPattern] = [re_path(r"^\Z", chat_socket)]  # type: ignore[arg-type]
