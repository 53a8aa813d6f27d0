"""Stop, retry, end as lost: the verbs that everyone else goes through, and a line in the log."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest

from ..conf import get_config
from ..exceptions import NotRetryable
from ..fence import Fence
from ..models import AgentRun, RunStatus
from ..reaper import reap
from ..retry import retry_run
from ..stop import stop_run

MOST = 1000
"""Runs that one action takes."""

Act = Callable[[AgentRun], tuple[bool, str]]
"""Whether it was done to this run, and what to say of it."""


@admin.action(description="Stop", permissions=["operate"])
def stop_runs(model_admin: Any, request: HttpRequest, runs: QuerySet[AgentRun]) -> None:
    def stop(run: AgentRun) -> tuple[bool, str]:
        if run.has_ended:
            return False, f"Run {run.pk} has ended already ({run.status})."
        stopped = stop_run(run)
        if stopped.status == RunStatus.CANCELLED:
            waited = stopped.started_at is not None
            return True, f"Stopped {'while it waited' if waited else 'before it started'}."
        if stopped.has_ended:
            return False, f"Run {run.pk} ended by itself ({stopped.status})."
        return True, "Asked to stop."

    _act(model_admin, request, runs, stop)


@admin.action(description="Retry", permissions=["operate"])
def retry_runs(model_admin: Any, request: HttpRequest, runs: QuerySet[AgentRun]) -> None:
    def retry(run: AgentRun) -> tuple[bool, str]:
        try:
            return True, f"Retried as run {retry_run(run).pk}."
        except NotRetryable as error:
            return False, str(error)

    _act(model_admin, request, runs, retry)


@admin.action(description="End as lost (only past lease and grace)", permissions=["operate"])
def end_lost_runs(model_admin: Any, request: HttpRequest, runs: QuerySet[AgentRun]) -> None:
    grace = timedelta(seconds=get_config().GRACE_SECONDS)

    def end(run: AgentRun) -> tuple[bool, str]:
        # `reap` asks again, in the write, whether the lease lapsed a grace ago.
        if run.claim_token is not None and reap(
            Fence(run.pk, run.claim_token), run.conversation_id, grace=grace
        ):
            return True, "Ended as worker_lost."
        return False, (
            f"Run {run.pk} is not lost: only a running run whose lease lapsed "
            f"{grace.total_seconds():g} s ago is, and one that nobody has locked."
        )

    _act(model_admin, request, runs, end)


def _act(model_admin: Any, request: HttpRequest, runs: QuerySet[AgentRun], act: Act) -> None:
    done, sentences = 0, []
    chosen = list(runs.defer("input", "traceback").order_by("pk")[: MOST + 1])
    for run in chosen[:MOST]:
        ok, sentence = act(run)
        if ok:
            done += 1
            model_admin.log_change(request, run, sentence)
        else:
            sentences.append(sentence)
    if done:
        sentence = f"{done} run{'s' if done > 1 else ''} done; each is in the admin's log."
        model_admin.message_user(request, sentence, messages.SUCCESS)
    for sentence in sentences[:10]:
        model_admin.message_user(request, sentence, messages.WARNING)
    if len(sentences) > 10:
        more = f"{len(sentences) - 10} more runs were left as they are."
        model_admin.message_user(request, more, messages.WARNING)
    if len(chosen) > MOST:
        rest = f"An action takes {MOST} runs at once: run it again for the rest."
        model_admin.message_user(request, rest, messages.WARNING)
