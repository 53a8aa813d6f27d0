"""The demo project's settings with the scripted agents of the tests."""

from __future__ import annotations

from project.settings import *  # noqa: F403 - a settings module is made of all its names
from project.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests"]
