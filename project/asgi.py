"""The demo project under ASGI: streams and WebSockets by Channels, everything else by Django."""

from __future__ import annotations

import gc
import os
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")

from django.contrib.staticfiles.handlers import ASGIStaticFilesHandler
from django.core.asgi import get_asgi_application

django_application: Any = ASGIStaticFilesHandler(get_asgi_application())  # loads the apps first

from channels.routing import ProtocolTypeRouter, URLRouter
from django.urls import path, re_path

from agentruns.contrib.aisdk.routing import websocket_urlpatterns as chat_urlpatterns
from agentruns.routing import http_urlpatterns, websocket_urlpatterns

application = ProtocolTypeRouter(
    {
        "http": URLRouter(
            [
                path("api/", URLRouter(http_urlpatterns)),
                re_path("", django_application),
            ]
        ),
        "websocket": URLRouter(
            [
                path("ws/chat/", URLRouter(chat_urlpatterns)),
                path("ws/", URLRouter(websocket_urlpatterns)),
            ]
        ),
    }
)

# What was loaded stays: to look through it for garbage would stop all streams for 50 to 70 ms.
gc.freeze()
