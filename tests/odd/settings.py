from __future__ import annotations

import os

from project.settings import *  # noqa: F403 - a settings module is made of all its names
from project.settings import DATABASES, INSTALLED_APPS

INSTALLED_APPS = ["tests.odd", *INSTALLED_APPS]
AUTH_USER_MODEL = f"odd.{os.environ.get('ODD_USER', 'UUIDUser')}"
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
USE_TZ = False
TIME_ZONE = "Asia/Kathmandu"
DATABASE_ROUTERS = ["tests.odd.routers.ReplicaRouter"]
DATABASES = {
    "default": {
        **DATABASES["default"],
        "OPTIONS": {**DATABASES["default"].get("OPTIONS", {}), "options": "-c search_path=odd"},
        "TEST": {"NAME": f"test_odd_{AUTH_USER_MODEL.lower().replace('.', '_')}"},
    },
    # A test that touches it fails: tests may use the default database only.
    "replica": {**DATABASES["default"], "TEST": {"MIRROR": "default"}},
}
REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": ["rest_framework.authentication.TokenAuthentication"],
    "DATETIME_FORMAT": "%d.%m.%Y",
    "DEFAULT_PAGINATION_CLASS": None,
}
