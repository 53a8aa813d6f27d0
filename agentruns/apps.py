"""The app: finds the agents of every installed app, registers the checks."""

from __future__ import annotations

from django.apps import AppConfig


class AgentRunsConfig(AppConfig):
    name = "agentruns"
    label = "agentruns"
    verbose_name = "Agent runs"
