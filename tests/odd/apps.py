from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.db import connections
from django.db.models.signals import pre_migrate


def create_schema(*, using: str, **_: Any) -> None:
    with connections[using].cursor() as cursor:
        cursor.execute("CREATE SCHEMA IF NOT EXISTS odd")


class OddConfig(AppConfig):
    name = "tests.odd"
    label = "odd"

    def ready(self) -> None:
        pre_migrate.connect(create_schema, sender=self)
