"""The demo project's settings with agents of three frameworks."""

from __future__ import annotations

from project.settings import *  # noqa: F403 - a settings module is made of all its names
from project.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.frameworks"]
