"""Settings of the demo project: what the environment says, over defaults for one machine."""

from __future__ import annotations

import os
from pathlib import Path

import dj_database_url

from .environment import agentruns_settings, secret_key
from .postgres import noted_url

BASE_DIR = Path(__file__).resolve().parent.parent
DEMO_DIR = BASE_DIR / ".demo"

SECRET_KEY = os.environ.get("SECRET_KEY") or secret_key(DEMO_DIR / "secret_key")
DEBUG = os.environ.get("DEBUG", "") == "1"
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "[::1]"]
ALLOWED_HOSTS += [host for host in os.environ.get("ALLOWED_HOSTS", "").split(",") if host]

INSTALLED_APPS = [
    "daphne",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "rest_framework.authtoken",
    "drf_spectacular",
    "agentruns",  # before channels, which has a runworker command as well
    "channels",
    "project",
    "project.chat",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

ROOT_URLCONF = "project.urls"
ASGI_APPLICATION = "project.asgi.application"
WSGI_APPLICATION = "project.wsgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

# Without DATABASE_URL, other commands find the database of the demo that runs.
DATABASE_URL = os.environ.get("DATABASE_URL") or noted_url(DEMO_DIR) or "postgresql:///agentruns"
DATABASES = {"default": dj_database_url.parse(DATABASE_URL)}
if LISTEN_DATABASE_URL := os.environ.get("LISTEN_DATABASE_URL"):
    # The test runner makes one database: the alias is a second way to it.
    DATABASES["listen"] = {
        **dj_database_url.parse(LISTEN_DATABASE_URL),
        "TEST": {"MIRROR": "default"},
    }
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

AGENTRUNS: dict[str, object] = {"DEFAULT_AGENT": "assistant"}
if "listen" in DATABASES:
    AGENTRUNS["LISTEN_DATABASE"] = "listen"
AGENTRUNS |= agentruns_settings(os.environ)

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "rest_framework.authentication.TokenAuthentication",  # first: its answer is a 401
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
}
SPECTACULAR_SETTINGS = {
    "TITLE": "agentruns",
    "VERSION": "0.1.0",
    "SERVE_INCLUDE_SCHEMA": False,
    "PREPROCESSING_HOOKS": ["agentruns.views.schema.only_ours"],
}

LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "login"

STATIC_URL = "static/"
TIME_ZONE = "UTC"
USE_TZ = True
USE_I18N = False
