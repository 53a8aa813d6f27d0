"""The app: finds the agents of every installed app, and registers the checks."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules


class AgentRunsConfig(AppConfig):
    name = "agentruns"
    verbose_name = "Agent runs"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from . import checks  # noqa: F401  registers the checks

        autodiscover_modules("agents")
