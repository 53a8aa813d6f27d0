"""ASGI applications that lack something, and a URLconf without the API."""

from __future__ import annotations

from typing import Any

from project.asgi import application, django_application

urlpatterns: list[Any] = []

without_streams = django_application


async def packed(scope: Any, receive: Any, send: Any) -> None:
    """What a compressing middleware does to the head of a response."""

    async def send_packed(message: Any) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], (b"Content-Encoding", b"gzip")]}
        await send(message)

    await application(scope, receive, send_packed)
