"""The demo project, with the agents of this folder."""

from __future__ import annotations

from tests.settings import *  # noqa: F403 - a settings module is made of all its names
from tests.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.clients"]
