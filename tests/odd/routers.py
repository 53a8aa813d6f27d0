from __future__ import annotations

from typing import Any


class ReplicaRouter:
    """Sends every read of the queue's tables to a replica, which lags behind."""

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        return "replica" if model._meta.app_label == "agentruns" else None

    def allow_relation(self, left: Any, right: Any, **hints: Any) -> bool:
        return True
