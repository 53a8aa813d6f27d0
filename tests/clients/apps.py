from __future__ import annotations

from django.apps import AppConfig


class ClientsConfig(AppConfig):
    name = "tests.clients"
    label = "tests_clients"
