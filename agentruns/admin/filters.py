"""Filters of the list of runs, each answered by an index or within the page's own order."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from ..agents import agent_names
from ..conf import get_config
from ..finalize import MESSAGES
from ..ids import first_id
from ..models import AgentRun, RunStatus, SeenWorker
from ..status import clock

AGES = {
    "10m": ("Last 10 minutes", timedelta(minutes=10)),
    "1h": ("Last hour", timedelta(hours=1)),
    "1d": ("Last 24 hours", timedelta(days=1)),
    "7d": ("Last 7 days", timedelta(days=7)),
}


class Filter(admin.SimpleListFilter):
    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, str]]:
        chosen = [value] if (value := request.GET.get(self.parameter_name or "")) else []
        return [(name, name) for name in sorted({*self.names(), *chosen})]

    def names(self) -> Iterable[str]:
        return ()


class ErrorCodeFilter(Filter):
    title = "error code"
    parameter_name = "code"

    def names(self) -> Iterable[str]:
        return MESSAGES

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if (code := self.value()) is None:
            return queryset
        return queryset.filter(status=RunStatus.FAILED, error__code=code)


class AgentFilter(Filter):
    title = "agent"
    parameter_name = "agent"

    def names(self) -> Iterable[str]:
        seen = SeenWorker.objects.values_list("agents", flat=True)
        return {*agent_names(), *(agent for agents in seen for agent in agents)}

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset if (agent := self.value()) is None else queryset.filter(agent=agent)


class WorkerFilter(Filter):
    title = "worker"
    parameter_name = "worker"

    def names(self) -> Iterable[str]:
        running = AgentRun.objects.running().values_list("worker_id", flat=True)
        return {*SeenWorker.objects.values_list("worker_id", flat=True), *running}

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset if (worker := self.value()) is None else queryset.filter(worker_id=worker)


class AgeFilter(admin.SimpleListFilter):
    """By the time in the key, which is that of the enqueue."""

    title = "enqueued"
    parameter_name = "age"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, str]]:
        return [(value, title) for value, (title, _) in AGES.items()] + [("old", "Earlier")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        if value == "old":
            return queryset.filter(pk__lt=first_id(clock() - AGES["7d"][1]))
        if value in AGES:
            return queryset.filter(pk__gte=first_id(clock() - AGES[value][1]))
        return queryset


class AttentionFilter(admin.SimpleListFilter):
    """What an operator looks for first."""

    title = "attention"
    parameter_name = "attention"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, str]]:
        return [
            ("lost", "Lost: past lease and grace"),
            ("stopping", "Asked to stop"),
            ("waiting", "Ready for over a minute"),
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        match self.value():
            case "lost":
                return queryset.expired(timedelta(seconds=get_config().GRACE_SECONDS))  # type: ignore[attr-defined, no-any-return]
            case "stopping":
                return queryset.filter(status=RunStatus.RUNNING, cancel_requested=True)
            case "waiting":
                minute_ago = clock() - timedelta(minutes=1)
                return queryset.filter(status=RunStatus.QUEUED, ready_at__lt=minute_ago)
        return queryset
