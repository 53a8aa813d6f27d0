"""The queue and its users in one database, sessions (and everything else) in another."""

from __future__ import annotations

import os

import dj_database_url

from .standard import *  # noqa: F403 - a settings module is made of all its names
from .standard import AGENTRUNS

DATABASES = {
    "default": dj_database_url.parse(os.environ["OTHER_DATABASE_URL"]),
    "queue": dj_database_url.parse(os.environ["DATABASE_URL"]),
}
DATABASE_ROUTERS = ["tests.streams.sites.split.SessionsApart"]
AGENTRUNS = {**AGENTRUNS, "DATABASE": "queue"}


class SessionsApart:
    def db_for_read(self, model: type, **hints: object) -> str:
        return "default" if model._meta.app_label == "sessions" else "queue"  # type: ignore[attr-defined]

    db_for_write = db_for_read

    def allow_relation(self, *args: object, **hints: object) -> bool:
        return True
