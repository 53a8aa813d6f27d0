"""The strip "Break it": for the demo, and for whoever sits at its machine."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any
from uuid import UUID

from django.contrib.auth.decorators import login_required
from django.db import OperationalError
from django.db.models import Count, DurationField, ExpressionWrapper, F
from django.db.models.functions import Now
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET, require_POST

from agentruns.models import AgentRun
from project import control
from project.faults import CATALOGUE, Fault


def catalogue(request: HttpRequest) -> tuple[Fault, ...]:
    """What this client may break: all of it, or nothing."""
    return CATALOGUE if may_break(request) else ()


def may_break(request: HttpRequest) -> bool:
    """Say whether a demo runs this process, and the client is on the same machine."""
    # A proxy on this machine speaks for clients elsewhere, and says so in a header.
    forwarded = {"HTTP_X_FORWARDED_FOR", "HTTP_FORWARDED", "HTTP_VIA"} & set(request.META)
    return control.is_there() and not forwarded and _is_loopback(request.META.get("REMOTE_ADDR"))


def _is_loopback(address: str | None) -> bool:
    try:
        return ip_address(address or "").is_loopback
    except ValueError:
        return False


@require_POST
@login_required
def break_it(request: HttpRequest, name: str) -> HttpResponse:
    """Do one of the catalogue's faults; a worker is the one that runs this user's turn."""
    if not may_break(request):
        sentence = "Only the demo, from its own machine, breaks things."
        return JsonResponse({"detail": sentence, "code": "not_here"}, status=403)
    fault = next((fault for fault in CATALOGUE if fault.name == name), None)
    if fault is None:
        sentence = f"No fault is called {name}."
        return JsonResponse({"detail": sentence, "code": "unknown_fault"}, status=404)
    said = control.ask({"fault": name, "pid": _worker_of(request)})
    return JsonResponse({"said": f"{said} {fault.why}"})


def _worker_of(request: HttpRequest) -> int | None:
    running = AgentRun.objects.running().filter(user_id=user_id(request)).order_by("-started_at")
    worker = running.values_list("worker_id", flat=True).first()
    pid = worker.split(":")[-2] if worker and worker.count(":") >= 2 else ""
    return int(pid) if pid.isdecimal() else None


@require_GET
def run_row(request: HttpRequest) -> HttpResponse:
    """The row of one run, as a piece of HTML that the strip shows."""
    try:
        if not request.user.is_authenticated or not may_break(request):
            raise Http404
        return render(request, "run_row.html", {"run": _row(request)})
    except OperationalError:
        return HttpResponse("The database is away.")


def _row(request: HttpRequest) -> dict[str, Any]:
    try:
        run_id = UUID(request.GET.get("run", ""))
    except ValueError:
        return {}
    lease = ExpressionWrapper(F("claim_expires_at") - Now(), output_field=DurationField())
    mine = AgentRun.objects.filter(pk=run_id, user_id=user_id(request))
    row = mine.annotate(lease=lease, seq=Count("events")).values(
        "status", "error", "worker_id", "attempt", "lease", "seq", "finished_at"
    )
    found: dict[str, Any] = dict(row.first() or {})
    if found:
        has_ended = found["lease"] is None or found["finished_at"] is not None
        found["lease"] = None if has_ended else found["lease"].total_seconds()
        found["lapsed"] = -(found["lease"] or 0)
    return found


def user_id(request: HttpRequest) -> Any:
    """Whoever is signed in; a project's users may have keys of any type."""
    return request.user.pk
