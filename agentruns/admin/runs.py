"""Runs: the list, the page of one run, the dashboard."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import Q
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.decorators import method_decorator
from django.views.decorators.http import require_POST

from ..models import AgentRun, Conversation
from ..text import span
from . import answers, dashboard, run_page
from .actions import end_lost_runs, retry_runs, stop_runs
from .filters import AgeFilter, AgentFilter, AttentionFilter, ErrorCodeFilter, WorkerFilter
from .readonly import ReadOnlyAdmin, link, may

FIELDS = (
    "id",
    "status",
    "agent",
    "user",
    "conversation",
    "user_message",
    "reply_message_id",
    "retry_of",
    "attempt",
    "turn",
    "cancel_requested",
    "error",
    "worker_id",
    "claim_expires_at",
    "last_seq",
    "limits",
    "idempotency_key",
)
WORDS = ("input", "metadata")


@admin.register(AgentRun)
class RunAdmin(ReadOnlyAdmin):
    list_display = (
        "short_id",
        "agent",
        "status",
        "error_code",
        "user",
        "of_conversation",
        "attempt",
        "waited",
        "took",
        "worker_id",
        "created_at",
    )
    list_filter = (
        "status",
        AttentionFilter,
        ErrorCodeFilter,
        AgentFilter,
        WorkerFilter,
        AgeFilter,
    )
    list_select_related = ("user",)
    heavy = ("input", "metadata", "traceback", "trace_context")
    search_help_text = "A run's, message's or conversation's id; a user's name, e-mail or id."
    actions = (stop_runs, retry_runs, end_lost_runs)

    def has_operate_permission(self, request: HttpRequest) -> bool:
        return may(request, "operate_agentrun")

    def get_queryset(self, request: HttpRequest) -> Any:
        return super().get_queryset(request).select_related("user")

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return [*FIELDS, *(WORDS if may(request, "read_words") else ())]

    def found_by_id(self, wanted: UUID) -> Q:
        return Q(pk=wanted) | Q(conversation_id=wanted) | Q(user_message_id=wanted)

    def found_by_user(self, users: list[Any]) -> Q:
        return Q(user_id__in=users)

    @admin.display(description="run")
    def short_id(self, run: AgentRun) -> str:
        return str(run.pk)[-12:]  # ids of one time begin alike

    @admin.display(description="error")
    def error_code(self, run: AgentRun) -> str:
        return str((run.error or {}).get("code", ""))

    @admin.display(description="conversation")
    def of_conversation(self, run: AgentRun) -> str:
        return link(Conversation, run.conversation_id, str(run.conversation_id)[-12:])

    @admin.display(description="waited")
    def waited(self, run: AgentRun) -> str:
        return span((run.started_at - run.created_at).total_seconds()) if run.started_at else ""

    @admin.display(description="took")
    def took(self, run: AgentRun) -> str:
        if run.started_at is None or run.finished_at is None:
            return ""
        return span((run.finished_at - run.started_at).total_seconds())

    def get_urls(self) -> list[URLPattern]:
        wrap = self.admin_site.admin_view
        return [
            path("dashboard/", wrap(self.dashboard_view), name="agentruns_dashboard"),
            path("<uuid:run_id>/journal/", wrap(self.journal_view), name="agentruns_journal"),
            path("<uuid:run_id>/answer/", wrap(self.answer_view), name="agentruns_answer"),
            *super().get_urls(),
        ]

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        run = self.get_object(request, object_id)
        if run is not None and self.has_view_permission(request, run):
            extra_context = {
                **(extra_context or {}),
                **run_page.context(
                    run,
                    words=may(request, "read_words"),
                    traceback=may(request, "read_traceback"),
                ),
                "may_operate": self.has_operate_permission(request),
            }
        return super().change_view(request, object_id, form_url, extra_context)

    @method_decorator(require_POST)
    def answer_view(self, request: HttpRequest, run_id: UUID) -> HttpResponse:
        """The answer that somebody wrote on the run's page."""
        run = AgentRun.objects.defer("input", "traceback").filter(pk=run_id).first()
        if run is None:
            raise Http404
        if not (self.has_operate_permission(request) and may(request, "read_words")):
            raise PermissionDenied
        answers.take(self, request, run)
        page = f"{self.admin_site.name}:agentruns_agentrun_change"
        return HttpResponseRedirect(reverse(page, args=[run_id]))

    def journal_view(self, request: HttpRequest, run_id: UUID) -> JsonResponse:
        """What came after a seq; the page asks for it while the run is not over."""
        run = AgentRun.objects.defer("input", "traceback").filter(pk=run_id).first()
        if run is None:
            raise Http404
        if not self.has_view_permission(request, run):
            raise PermissionDenied
        given = request.GET.get("after", "0")
        after = int(given) if given.isdecimal() and len(given) < 10 else 0
        events = run_page.journal(run, after=after, words=may(request, "read_words"))
        return JsonResponse({"status": run.status, "ended": run.has_ended, "events": events})

    def dashboard_view(self, request: HttpRequest) -> TemplateResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        context = {
            **self.admin_site.each_context(request),
            "title": "Agent runs: dashboard",
            "opts": self.opts,
            **dashboard.context(),
        }
        return TemplateResponse(request, "admin/agentruns/dashboard.html", context)
