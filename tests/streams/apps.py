from __future__ import annotations

from django.apps import AppConfig


class StreamsConfig(AppConfig):
    name = "tests.streams"
    label = "tests_streams"
