"""The routes as the docs tell a project to mount them, and a look inside the process."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from django.core.asgi import get_asgi_application

django_application: Any = get_asgi_application()  # loads the apps first

from channels.routing import ProtocolTypeRouter, URLRouter
from django.urls import path, re_path

from agentruns.reader import get_reader
from agentruns.routing import http_urlpatterns, websocket_urlpatterns


async def inside(scope: Any, receive: Any, send: Any) -> None:
    """How many viewers and asyncio tasks there are."""
    seen = {"viewers": get_reader().viewers, "tasks": len(asyncio.all_tasks())}
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": json.dumps(seen).encode()})


application = ProtocolTypeRouter(
    {
        "http": URLRouter(
            [
                path("inside", inside),
                path("api/", URLRouter(http_urlpatterns)),
                re_path("", django_application),
            ]
        ),
        "websocket": URLRouter([path("ws/", URLRouter(websocket_urlpatterns))]),
    }
)
