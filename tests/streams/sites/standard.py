"""The demo's settings, with what a project may add to them: compression, its own REST classes."""

from __future__ import annotations

from project.settings import *  # noqa: F403 - a settings module is made of all its names
from project.settings import INSTALLED_APPS, MIDDLEWARE, REST_FRAMEWORK

INSTALLED_APPS = [*INSTALLED_APPS, "tests.streams"]
MIDDLEWARE = ["django.middleware.gzip.GZipMiddleware", *MIDDLEWARE]
ROOT_URLCONF = "tests.streams.sites.urls"
REST_FRAMEWORK = {
    **REST_FRAMEWORK,
    "DEFAULT_AUTHENTICATION_CLASSES": [
        *REST_FRAMEWORK["DEFAULT_AUTHENTICATION_CLASSES"],
        "tests.streams.sites.rest.BadgeAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["tests.streams.sites.rest.NobodyBanned"],
    "DEFAULT_THROTTLE_CLASSES": ["tests.streams.sites.rest.HastyThrottle"],
}
SESSION_COOKIE_NAME = "session"
