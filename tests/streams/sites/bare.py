"""A project without sessions or middleware, with users of its own kind, under a prefix."""

from __future__ import annotations

from project.settings import *  # noqa: F403 - a settings module is made of all its names

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "rest_framework",
    "agentruns",
    "tests.streams",
    "tests.streams.sites.people",
]
MIDDLEWARE: list[str] = []
AUTH_USER_MODEL = "people.Person"
ROOT_URLCONF = "tests.streams.sites.urls"
FORCE_SCRIPT_NAME = "/prefix"
REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": ["tests.streams.sites.rest.BadgeAuthentication"],
}
