"""The tests' settings for workers alone: without the apps that only the web needs, which are half
of what a process imports.
"""

from __future__ import annotations

from tests.settings import *  # noqa: F403 - a settings module is made of all its names
from tests.settings import INSTALLED_APPS

ROOT_URLCONF = __name__
urlpatterns: list[object] = []
OF_THE_WEB = {"daphne", "django.contrib.admin", "django.contrib.staticfiles", "drf_spectacular"}
INSTALLED_APPS = [app for app in INSTALLED_APPS if app not in OF_THE_WEB]
