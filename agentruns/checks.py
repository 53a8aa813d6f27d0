"""System checks: what would go wrong later, said at start-up, each with its fix."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from django.apps import apps
from django.core import checks
from django.core.checks import CheckMessage, Error, register
from rest_framework.permissions import AllowAny
from rest_framework.settings import api_settings

from .agents import agent_names
from .conf import asgi_application, databases, engine_of, get_config, given, problems


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


@register()
def views_are_not_open_to_anyone(**_: Any) -> Iterable[CheckMessage]:
    permissions: list[Any] = list(api_settings.DEFAULT_PERMISSION_CLASSES)
    if AllowAny in permissions:
        yield checks.Warning(
            "REST framework's DEFAULT_PERMISSION_CLASSES let anyone in (AllowAny): every user who "
            "is signed in may run agents, and views of your own that name no permission are open "
            "to the world.",
            hint="Set REST_FRAMEWORK['DEFAULT_PERMISSION_CLASSES'] to what your users must have, "
            "such as rest_framework.permissions.IsAuthenticated.",
            id="agentruns.W003",
        )
    if not api_settings.DEFAULT_AUTHENTICATION_CLASSES:
        yield checks.Warning(
            "REST framework's DEFAULT_AUTHENTICATION_CLASSES is empty: nobody can sign in, and "
            "every call of the API is refused.",
            hint="Name at least one class in REST_FRAMEWORK['DEFAULT_AUTHENTICATION_CLASSES'].",
            id="agentruns.W004",
        )


@register()
def the_hub_does_not_listen_through_a_pooler(**_: Any) -> Iterable[CheckMessage]:
    values = given()
    if not isinstance(values, Mapping) or any(problems(values)):
        return
    config = get_config()
    database = databases().get(config.DATABASE, {})
    if not config.pooled and database.get("DISABLE_SERVER_SIDE_CURSORS"):
        yield checks.Warning(
            f"DATABASES[{config.DATABASE!r}] looks as if it leads through a transaction pooler "
            "(DISABLE_SERVER_SIDE_CURSORS is True), and LISTEN_DATABASE is not set: no signal "
            "would ever arrive.",
            hint="Set AGENTRUNS['LISTEN_DATABASE'] to an alias with a direct connection, or to "
            "None to poll only.",
            id="agentruns.W005",
        )
    if config.pooled and config.LISTEN_DATABASE and not database.get("DISABLE_SERVER_SIDE_CURSORS"):
        yield checks.Warning(
            f"LISTEN_DATABASE says that DATABASES[{config.DATABASE!r}] leads through a pooler, and "
            "that alias may use server-side cursors, which a transaction pooler breaks.",
            hint=f"Set DATABASES[{config.DATABASE!r}]['DISABLE_SERVER_SIDE_CURSORS'] = True.",
            id="agentruns.W006",
        )


@register()
def connections_do_not_pile_up(**_: Any) -> Iterable[CheckMessage]:
    values = given()
    if not isinstance(values, Mapping) or any(problems(values)) or asgi_application() is None:
        return
    alias = get_config().DATABASE
    if databases().get(alias, {}).get("CONN_MAX_AGE", 0) != 0:
        yield checks.Warning(
            f"DATABASES[{alias!r}] keeps connections (CONN_MAX_AGE), and under ASGI each request "
            "may be served by another thread: they pile up until PostgreSQL refuses.",
            hint="Leave CONN_MAX_AGE at 0 and use psycopg's pool "
            "(DATABASES[...]['OPTIONS']['pool'] = True).",
            id="agentruns.W007",
        )
