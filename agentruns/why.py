"""Say why a run stands where it stands, in one true sentence.

Each reason below is a way in which a run can stand still, found from the same facts that claims and
sweeps go by. A reason is a predicate, so that the sentence of a waiting turn can hold that of the
turn it waits for.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Q

from . import db
from .agents import Limits, agent_names
from .conf import Config, get_config
from .limits import limits_of
from .locks import holder
from .models import AgentRun, Conversation, Question, RunEvent, RunStatus
from .status import Seen, clock, seen_workers
from .text import span

COUNTED = 1000
"""Runs ahead are counted up to here."""
SILENT_SECONDS = 30
"""Silence of a running agent that is worth a word."""
SLACK_SECONDS = 5
"""What a beat or an ending may take beyond its time before the reason names it."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why the run stands: a stable code, and what to say after «Run ID»."""

    run_id: UUID
    code: str
    predicate: str

    @property
    def sentence(self) -> str:
        return f"Run {self.run_id} {self.predicate}."

    def as_json(self) -> dict[str, Any]:
        return {"run_id": str(self.run_id), "reason": self.code, "sentence": self.sentence}


def explain(run_id: UUID) -> Reason:
    """Why this run stands where it stands now."""
    run = AgentRun.objects.defer("input", "traceback").filter(pk=run_id).first()
    if run is None:
        return Reason(run_id, "unknown", "does not exist")
    moment = clock()
    return Explanation(get_config(), moment, seen_workers(moment)).of(run)


@dataclass(frozen=True, slots=True)
class Explanation:
    """What is known at one moment; the methods try the reasons, the most decisive first."""

    config: Config
    moment: datetime
    workers: list[Seen]

    def of(self, run: AgentRun) -> Reason:
        if run.status == RunStatus.QUEUED:
            code, predicate = self._queued(run)
        elif run.status == RunStatus.RUNNING:
            code, predicate = self._running(run)
        elif run.status == RunStatus.WAITING:
            code, predicate = self._waiting(run)
        else:
            code, predicate = self._ended(run)
        return Reason(run.pk, code, predicate)

    # Queued

    def _queued(self, run: AgentRun) -> tuple[str, str]:
        siblings = AgentRun.objects.defer("input", "traceback").filter(
            conversation_id=run.conversation_id
        )
        holding = siblings.holding().first()
        if holding is not None:
            return f"behind_{holding.status}", (
                f"waits behind run {holding.pk} of its conversation, which "
                f"{self.of(holding).predicate}"
            )
        if run.ready_at is None:
            return self._unmarked(run, siblings)
        if run.ready_at > self.moment:
            return self._delayed(run)
        most = Limits.kept(run.limits).queue_seconds
        starts = run.started_at is None  # an answered run goes on, however long it stands ready
        if starts and most is not None and (self.moment - run.ready_at).total_seconds() > most:
            return "queue_overdue", (
                f"has been ready for {self._since(run.ready_at)}, longer than its queue_seconds "
                f"({most:g} s) allows, and is not claimed any more; "
                f"{self._sweep('ends it as queue_timeout')}"
            )
        return self._ready(run, f"has been ready for {self._since(run.ready_at)}")

    def _unmarked(self, run: AgentRun, siblings: Any) -> tuple[str, str]:
        waiting = siblings.queued().exclude(pk=run.pk)
        ahead = (
            waiting.filter(ready_at__isnull=False).first()
            or waiting.filter(Q(turn__lt=run.turn) | Q(turn=run.turn, attempt__lt=run.attempt))
            .in_turn_order()
            .first()
        )
        if ahead is not None:
            return "behind_queued", (
                f"waits behind run {ahead.pk}, an earlier turn of its conversation, which "
                f"{self.of(ahead).predicate}"
            )
        text = "is its conversation's next turn, but was not marked so when the last one ended"
        if locked := holder(Conversation(pk=run.conversation_id)):
            return "conversation_locked", (
                f"{text}; its conversation's row is locked by {locked}, and the sweep that would "
                "mark it steps over locked rows"
            )
        return "promotion_lost", f"{text}; {self._sweep('marks it')}"

    def _delayed(self, run: AgentRun) -> tuple[str, str]:
        assert run.ready_at is not None
        retry = f" (it retries run {run.retry_of_id})" if run.retry_of_id else ""
        return "delayed", f"is delayed: it may start in {self._until(run.ready_at)}{retry}"

    def _ready(self, run: AgentRun, text: str) -> tuple[str, str]:
        if refused := _refuses_writes():
            return "database_read_only", f"{text}, and {refused}: nothing can be claimed"
        live = [worker for worker in self.workers if worker.live]
        if not live:
            return "no_worker", f"{text}, and no worker is alive{self._last_seen()}"
        # Of a worker without a row of its own only its runs are known: it may know any agent.
        knowing = [worker for worker in live if run.agent in worker.agents or worker.slots is None]
        if not knowing:
            return self._unknown_agent(run, text, live)
        awake = [worker for worker in knowing if not worker.draining]
        if not awake:
            return "workers_draining", (
                f"{text}, and every live worker that knows agent {run.agent!r} is draining: "
                f"{_names(knowing)}"
            )
        return self._unclaimed(run, text, awake)

    def _unknown_agent(self, run: AgentRun, text: str, live: list[Seen]) -> tuple[str, str]:
        known = ", ".join(sorted({agent for worker in live for agent in worker.agents})) or "none"
        here = "" if run.agent in agent_names() else ", nor is it registered here"
        return "no_worker_for_agent", (
            f"{text}, and no live worker knows agent {run.agent!r} (they know: {known}){here}"
        )

    def _unclaimed(self, run: AgentRun, text: str, awake: list[Seen]) -> tuple[str, str]:
        assert run.ready_at is not None
        waited = (self.moment - run.ready_at).total_seconds()
        held = {worker.worker_id: 0 for worker in awake}
        ours = AgentRun.objects.running().filter(worker_id__in=held)
        for worker_id in ours.values_list("worker_id", flat=True):
            held[worker_id] += 1
        sized = [worker for worker in awake if worker.slots is not None]
        slots = sum(worker.slots or 0 for worker in sized)
        if locked := holder(run):
            return "row_locked", (
                f"{text}, and its row is locked by {locked}; every claim steps over a locked row"
            )
        if sized and sum(held.values()) >= slots:
            return "workers_full", (
                f"{text}, and all {slots} slots of the live workers that know agent "
                f"{run.agent!r} are taken; {self._ahead(run)}"
            )
        # A beat after it became ready that showed every slot taken: by code, where not by runs.
        if sized and all(
            worker.busy >= (worker.slots or 0) and worker.seen_seconds_ago < waited
            for worker in sized
        ):
            return "slots_stuck", (
                f"{text}, and all {slots} slots were taken at the last beat, some of them by code "
                f"that has not returned though its run has ended; {self._ahead(run)}"
            )
        if waited <= self.config.POLL_SECONDS + SLACK_SECONDS:
            return "about_to_start", (
                f"{text}, and a live worker with a free slot claims it within "
                f"{self.config.POLL_SECONDS:g} s; {self._ahead(run)}"
            )
        return "not_claimed", (
            f"{text} beside free slots of live workers that know agent {run.agent!r} "
            f"({_names(awake)}): their claims fail or come back empty, and their logs say "
            f"«cannot claim» and why; {self._ahead(run)}"
        )

    def _ahead(self, run: AgentRun) -> str:
        ready = AgentRun.objects.marked().filter(
            Q(ready_at__lt=run.ready_at) | Q(ready_at=run.ready_at, pk__lt=run.pk)
        )
        count = ready[:COUNTED].count()
        if count == COUNTED:
            return f"{COUNTED} ready runs or more are ahead of it"
        return {0: "no ready run is ahead of it", 1: "1 ready run is ahead of it"}.get(
            count, f"{count} ready runs are ahead of it"
        )

    # Running

    def _running(self, run: AgentRun) -> tuple[str, str]:
        assert run.claim_expires_at is not None
        left = (run.claim_expires_at - self.moment).total_seconds()
        if left < 0:
            return self._lapsed(run, -left)
        if locked := holder(run) or holder(Conversation(pk=run.conversation_id)):
            return "running_locked", (
                f"runs on worker {run.worker_id}, and its row or its conversation's is locked by "
                f"{locked}; until that ends its worker cannot end it"
            )
        if run.cancel_requested:
            return self._stopping(run)
        return self._alive(run, left)

    def _lapsed(self, run: AgentRun, ago: float) -> tuple[str, str]:
        text = (
            f"has not been renewed by worker {run.worker_id} for "
            f"{self._since(run.last_heartbeat_at)}: its lease lapsed {span(ago)} ago"
        )
        grace = self.config.GRACE_SECONDS
        if ago < grace:
            return "lease_lapsed", (
                f"{text}, and unless that worker comes back the first sweep after "
                f"{span(grace - ago)} ends it as worker_lost"
            )
        if locked := holder(run) or holder(Conversation(pk=run.conversation_id)):
            return "lost_and_locked", (
                f"{text}; it is lost, and the sweep steps over it while its row or its "
                f"conversation's is locked by {locked}"
            )
        return "lost", f"{text}; it is lost, and {self._sweep('ends it as worker_lost')}"

    def _stopping(self, run: AgentRun) -> tuple[str, str]:
        asked = run.stop_requested_at
        seconds = (self.moment - asked).total_seconds() if asked else 0.0
        text = f"was asked to stop {span(seconds)} ago" if asked else "was asked to stop"
        grace = self.config.STOP_GRACE_SECONDS
        if seconds > grace + self.config.HEARTBEAT_SECONDS + SLACK_SECONDS:
            return "stop_overdue", (
                f"{text}, and worker {run.worker_id} still beats for it (last "
                f"{self._since(run.last_heartbeat_at)} ago) without having ended it: its log names "
                "the agent that ignores its cancellation, or the ending that cannot be stored"
            )
        return "stopping", (
            f"{text}, and worker {run.worker_id} ends it: at its code's next await, or "
            f"{grace:g} s after the worker heard of it"
        )

    def _alive(self, run: AgentRun, left: float) -> tuple[str, str]:
        text = f"has been running on worker {run.worker_id} for {self._since(run.started_at)}"
        lease = f"its lease has {span(left)} left"
        config, worker = self.config, self._worker(run.worker_id)
        assert run.started_at is not None
        assert run.last_heartbeat_at is not None
        beaten = (self.moment - run.last_heartbeat_at).total_seconds()
        # Answered, it was ready again after its start; the time that it waited does not count.
        age = (self.moment - max(run.started_at, run.ready_at or run.started_at)).total_seconds()
        if beaten > config.HEARTBEAT_SECONDS + SLACK_SECONDS:
            return "beat_missed", (
                f"{text}, and that worker has not beaten for {span(beaten)}; {lease}, and "
                f"{config.GRACE_SECONDS:g} s after that a sweep ends it as worker_lost"
            )
        if (over := self._past_its_time(run, age)) is not None:
            return "timed_out", f"{text}, {over}; {lease}"
        if worker is not None and worker.draining:
            return "draining", (
                f"{text}, which is draining and ends it as worker_shutdown unless it ends within "
                f"the drain's budget; {lease}"
            )
        return self._at_work(run, text, lease)

    def _past_its_time(self, run: AgentRun, age: float) -> str | None:
        name, most = "RUN_TIMEOUT_SECONDS", self.config.RUN_TIMEOUT_SECONDS
        own = limits_of(run).run_seconds
        if own is not None and own < most:
            name, most = "its run_seconds", own
        if age <= most:
            return None
        return f"longer than {name} ({most:g} s) allows, and {self._enders(age - most, 'timeout')}"

    def _enders(self, seconds: float, code: str) -> str:
        """Who ends a run that passed a limit so many seconds ago."""
        grace = self.config.STOP_GRACE_SECONDS + self.config.GRACE_SECONDS
        if seconds > grace:
            return f"its worker has not ended it; {self._sweep(f'ends it as {code}')}"
        return (
            f"that worker is ending it as {code}; where it has not in {span(grace - seconds)}, a "
            "sweep does"
        )

    def _at_work(self, run: AgentRun, text: str, lease: str) -> tuple[str, str]:
        last = RunEvent.objects.filter(run_id=run.pk).order_by("-seq").first()
        if last is None:
            return "running", f"{text}; {lease}"
        silence = (self.moment - last.created_at).total_seconds()
        most = limits_of(run).silence_seconds
        if most is not None and silence > most:
            return "silent_too_long", (
                f"{text} and has said nothing for {span(silence)}, longer than its silence_seconds "
                f"({most:g} s) allows; {self._enders(silence - most, 'silent')}; {lease}"
            )
        if silence > SILENT_SECONDS:
            return "silent", (
                f"{text} and has said nothing for {span(silence)} (last event: {last.type}, seq "
                f"{last.seq}): its code is at work, or waits for something outside; {lease}"
            )
        return "running", (
            f"{text} and is at work (last event: {last.type}, seq {last.seq}, {span(silence)} "
            f"ago); {lease}"
        )

    # Waiting for an answer

    def _waiting(self, run: AgentRun) -> tuple[str, str]:
        question = Question.objects.of(run).unanswered().first()
        if question is None:
            return "question_missing", (
                "waits for an answer, and its question was deleted: stop it, and retry it"
            )
        text = (
            f"has waited for a person's answer to question {question.key!r} for "
            f"{self._since(question.asked_at)}"
        )
        if question.expires_at <= self.moment:
            return "question_expired", f"{text}, too long; {self._sweep('ends it')}"
        return "waiting", (
            f"{text}; it takes no worker, and fails as input_expired unless it is answered within "
            f"{self._until(question.expires_at)}"
        )

    # Ended

    def _ended(self, run: AgentRun) -> tuple[str, str]:
        how = {
            RunStatus.COMPLETED: "completed",
            RunStatus.FAILED: "failed",
            RunStatus.CANCELLED: "was stopped"
            if run.started_at
            else "was stopped before it started",
        }[RunStatus(run.status)]
        text = f"{how} {self._since(run.finished_at)} ago"
        if run.error:
            text += f" with {run.error.get('code')} («{run.error.get('message')}»)"
        retry = run.retries.order_by("-attempt").values_list("pk", "status").first()
        if retry:
            text += f"; run {retry[0]} ({retry[1]}) retries it"
        if run.trimmed_at:
            text += "; its journal was trimmed"
        return str(run.status), text

    # Words

    def _since(self, moment: datetime | None) -> str:
        return span((self.moment - moment).total_seconds()) if moment else "an unknown time"

    def _until(self, moment: datetime) -> str:
        return span((moment - self.moment).total_seconds())

    def _worker(self, worker_id: str) -> Seen | None:
        return next((seen for seen in self.workers if seen.worker_id == worker_id), None)

    def _last_seen(self) -> str:
        if not self.workers:
            return " (none was seen within the last hour)"
        last = min(self.workers, key=lambda worker: worker.seen_seconds_ago)
        return f" (the last one, {last.worker_id}, was seen {span(last.seen_seconds_ago)} ago)"

    def _sweep(self, what: str) -> str:
        if any(worker.live and worker.reaps for worker in self.workers):
            return f"the next sweep {what}, within about {self.config.REAP_SECONDS:g} s"
        return (
            f"the next sweep {what}, but no live worker sweeps: start one, or run "
            "`manage.py reap --once`"
        )


def _names(workers: list[Seen]) -> str:
    return ", ".join(worker.worker_id for worker in workers)


def _refuses_writes() -> str | None:
    with db.connection().cursor() as cursor:
        cursor.execute(
            "SELECT pg_is_in_recovery(), current_setting('default_transaction_read_only')"
        )
        standby, read_only = cursor.fetchone()
    if standby:
        return "the database is a standby, which takes no writes"
    return "the database is read-only" if read_only == "on" else None
