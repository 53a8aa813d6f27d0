"""System checks: what would go wrong later, said at start-up, each with its fix."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from django.apps import apps
from django.core import checks
from django.core.checks import CheckMessage, Error, register

from .agents import agent_names
from .conf import engine_of, get_config, given, problems


@register()
def agentruns_before_channels(**_: Any) -> Iterable[CheckMessage]:
    names = [config.name for config in apps.get_app_configs()]
    if "channels" in names and names.index("channels") < names.index("agentruns"):
        yield Error(
            "'channels' stands before 'agentruns' in INSTALLED_APPS, so that `manage.py runworker` "
            "is the command of Channels.",
            hint="Put 'agentruns' before 'channels', or leave 'channels' out: its consumers work "
            "without it.",
            id="agentruns.E001",
        )


@register()
def settings_can_work(**_: Any) -> Iterable[CheckMessage]:
    values = given()
    if not isinstance(values, Mapping):
        yield Error(
            f"AGENTRUNS is a {type(values).__name__}, not a dict.",
            hint="Write AGENTRUNS = {...} in the settings.",
            id="agentruns.E002",
        )
        return
    for problem in problems(values):
        yield Error(problem.sentence, hint=problem.hint, id="agentruns.E002")


@register()
def database_is_postgresql(**_: Any) -> Iterable[CheckMessage]:
    values = given()
    alias = values.get("DATABASE", "default") if isinstance(values, Mapping) else "default"
    engine = engine_of(alias) if isinstance(alias, str) else ""
    if engine and "postgres" not in engine and "postgis" not in engine:
        yield Error(
            f"The database {alias!r} has the engine {engine!r}; agentruns needs PostgreSQL 14 "
            "or newer.",
            hint="Use django.db.backends.postgresql, or name a PostgreSQL alias in "
            "AGENTRUNS['DATABASE'].",
            id="agentruns.E003",
        )


@register()
def a_default_agent_is_known(**_: Any) -> Iterable[CheckMessage]:
    values = given()
    if not isinstance(values, Mapping) or any(problems(values)):
        return
    names, default = agent_names(), get_config().DEFAULT_AGENT
    if default is not None and default not in names:
        yield Error(
            f"AGENTRUNS['DEFAULT_AGENT'] is {default!r}, and no agent of that name is registered.",
            hint=f"Registered agents: {', '.join(names) or 'none'}.",
            id="agentruns.E004",
        )
    elif not names:
        yield checks.Warning(
            "No agent is registered.",
            hint="Write one in agents.py of an installed app, with @agentruns.agent('name').",
            id="agentruns.W001",
        )
    elif default is None and len(names) > 1:
        yield checks.Warning(
            f"{len(names)} agents are registered and none is the default: every request must "
            "name its agent.",
            hint=f"Set AGENTRUNS['DEFAULT_AGENT'] to one of {', '.join(names)}.",
            id="agentruns.W002",
        )
