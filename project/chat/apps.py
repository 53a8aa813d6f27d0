"""The demo's agents and its chat page."""

from __future__ import annotations

from django.apps import AppConfig


class ChatConfig(AppConfig):
    name = "project.chat"
    label = "chat"
