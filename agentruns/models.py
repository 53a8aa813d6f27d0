"""The tables: conversations, their messages, runs and the journal of each run.

Rung 7: one running turn per conversation is a constraint, not a check in code. What the schema
guarantees holds for every writer, psql included.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

from django.conf import settings
from django.db import models
from django.db.models import F, Func, Q
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast, Now

from .conf import get_config
from .ids import uuid7

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .fence import Fence


class RunStatus(models.TextChoices):
    """Moves only `queued → running → completed | failed | cancelled`, `queued → cancelled |
    failed`, `running → waiting → queued`, and `waiting → cancelled | failed`.
    """

    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


ACTIVE = (RunStatus.QUEUED, RunStatus.RUNNING, RunStatus.WAITING)
HOLDING = (RunStatus.RUNNING, RunStatus.WAITING)
"""Statuses in which a run has its conversation's turn."""
TERMINAL = (RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED)


class MessageRole(models.TextChoices):
    USER = "user"
    ASSISTANT = "assistant"
    SYSTEM = "system"
    TOOL = "tool"


class MessageStatus(models.TextChoices):
    QUEUED = "queued", "queued: its turn has not started"
    SENT = "sent", "sent: its turn started"
    DRAFT = "draft", "draft: handed back by a stop"
    COMPLETE = "complete", "complete: a whole reply"
    PARTIAL = "partial", "partial: a reply cut off by a stop or a failure"
    SUPERSEDED = "superseded", "superseded: a partial reply whose turn was retried"


class ClockTimestamp(Func):
    """The database's clock at the moment of evaluation.

    `Now()` is the statement's start: after a wait for a row lock it is behind by the wait, and a
    lease counted from it is short.
    """

    template = "CLOCK_TIMESTAMP()"
    output_field = models.DateTimeField()


class JsonPathExists(Func):
    """Whether the JSON holds what the path names."""

    function = "jsonb_path_exists"
    output_field = models.BooleanField()


NO_LIMIT = models.Value('$.* ? (@.type() != "number" || @ <= 0 || @ > 1000000000000000)')


def start_by() -> models.Expression:
    """When the time ends in which a run may start; null where there is no end."""
    seconds = Cast(KeyTextTransform("queue_seconds", "limits"), models.FloatField())
    span = models.ExpressionWrapper(
        models.Value(timedelta(seconds=1)) * seconds, output_field=models.DurationField()
    )
    return models.ExpressionWrapper(F("ready_at") + span, output_field=models.DateTimeField())


class QueueManager(models.Manager[Any]):
    """Reads and writes on the queue's own database, whatever a router says: a replica lags behind
    the queue. As base manager too, for `refresh_from_db` and foreign keys.
    """

    def get_queryset(self) -> models.QuerySet[Any]:
        queryset = super().get_queryset()
        return queryset if self._db else queryset.using(get_config().DATABASE)


class Conversation(models.Model):
    """A sequence of turns, run one at a time.

    Its row is the lock of every verb that changes its turns (enqueue, claim's promotion, end, stop,
    retry): `FOR NO KEY UPDATE`, taken first.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    title = models.TextField(blank=True, default="", db_default="")
    metadata = models.JSONField(blank=True, default=dict, db_default={})
    client_id = models.TextField(null=True, blank=True)  # noqa: DJ001  null: none, and not unique
    """The id under which a client of another wire knows it, `wire:id`; unique per user."""
    last_turn = models.PositiveIntegerField(default=0, db_default=0)
    """Number of the newest turn."""
    created_at = models.DateTimeField(db_default=Now())

    objects = QueueManager()

    class Meta:
        base_manager_name = "objects"
        indexes = [
            models.Index(
                fields=["user", "-created_at", "-id"],
                name="agentruns_user_conversations",
            )
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["user", "client_id"],
                condition=Q(client_id__isnull=False),
                name="one_conversation_per_client_id",
            ),
        ]

    def __str__(self) -> str:
        return f"conversation {self.pk}"  # not the title: that is somebody's words


class MessageQuerySet(models.QuerySet["Message"]):
    """Adjectives: each narrows, none writes."""

    def transcript(self) -> Self:
        """What was said, in order: messages with a position."""
        return self.filter(position__isnull=False).order_by("position", "id")

    def drafts(self) -> Self:
        return self.filter(status=MessageStatus.DRAFT).order_by("created_at", "id")


class Message(models.Model):
    """What was said. The transcript outlives the journal."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    conversation = models.ForeignKey(
        Conversation, on_delete=models.CASCADE, related_name="messages", db_index=False
    )
    role = models.CharField(max_length=20, choices=MessageRole.choices)
    content = models.TextField(blank=True, default="", db_default="")
    parts = models.JSONField(blank=True, default=list, db_default=[])
    """Tool calls and other structured content, in order."""
    status = models.CharField(max_length=20, choices=MessageStatus.choices)
    position = models.PositiveIntegerField(null=True, blank=True)
    """Place in the transcript; null while the message is not part of it."""
    created_at = models.DateTimeField(db_default=Now())

    objects = QueueManager.from_queryset(MessageQuerySet)()

    class Meta:
        base_manager_name = "objects"
        indexes = [models.Index(fields=["conversation", "position"], name="agentruns_transcript")]

    def __str__(self) -> str:
        return f"{self.role} message {self.pk}"


MARKED = Q(status__in=(RunStatus.QUEUED, ""), ready_at__isnull=False)
"""Queued, with the mark that it may start. No run has the status `""`: beside an equality, the
planner could take the index of all that is queued instead, which false statistics call as small.
"""


class AgentRunQuerySet(models.QuerySet["AgentRun"]):
    """Adjectives: each narrows, none writes. Hot statements embed these, so each condition stands
    here only.
    """

    def queued(self) -> Self:
        return self.filter(status=RunStatus.QUEUED)

    def marked(self) -> Self:
        """Queued, with the mark that it may start, be it now or later."""
        return self.filter(MARKED)

    def running(self) -> Self:
        return self.filter(status=RunStatus.RUNNING)

    def waiting(self) -> Self:
        """Asked a person, and not answered."""
        return self.filter(status=RunStatus.WAITING)

    def holding(self) -> Self:
        """Having their conversation's turn."""
        return self.filter(status__in=HOLDING)

    def suspended(self) -> Self:
        """Started, and on no worker: waiting, or answered and not claimed again."""
        return self.filter(
            Q(status=RunStatus.WAITING) | Q(status=RunStatus.QUEUED, started_at__isnull=False)
        )

    def active(self) -> Self:
        # Equalities: one `IN` could use neither of the partial indexes.
        return self.filter(
            Q(status=RunStatus.QUEUED) | Q(status=RunStatus.RUNNING) | Q(status=RunStatus.WAITING)
        )

    def ended(self) -> Self:
        return self.filter(status__in=TERMINAL)

    def startable(self, agents: Iterable[str]) -> Self:
        """Head turns whose time has come and is not over, of these agents, longest ready first."""
        return (
            self.marked()
            .alias(start_by=start_by())
            .filter(ready_at__lte=Now(), agent__in=list(agents))
            .filter(Q(start_by=None) | Q(start_by__gt=Now()) | Q(started_at__isnull=False))
            .order_by("ready_at", "id")
        )

    def overdue(self) -> Self:
        """Not started, and ready for longer than they may be, by the database's clock."""
        return (
            self.queued()
            .alias(start_by=start_by())
            .filter(started_at=None, limits__has_key="queue_seconds")
            .filter(start_by__lte=ClockTimestamp())
            .order_by("ready_at", "id")
        )

    def in_turn_order(self) -> Self:
        return self.order_by("turn", "attempt", "id")

    def expired(self, grace: timedelta) -> Self:
        """Running, and not renewed for `grace` past the lease, by the database's clock."""
        return self.running().filter(claim_expires_at__lt=ClockTimestamp() - grace)

    def fenced(self, fence: Fence) -> Self:
        # Written as what it is not: with `status = 'running'`, statistics of a quiet moment have
        # the planner walk the index of everything that runs, once for each run that is asked for.
        asked = self.filter(pk=fence.run_id, claim_token=fence.token)
        return asked.exclude(status__in=(RunStatus.QUEUED, RunStatus.WAITING, *TERMINAL))


class AgentRun(models.Model):
    """One turn's work: queued, claimed by a worker under a lease, ended once."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    conversation = models.ForeignKey(
        Conversation, on_delete=models.CASCADE, related_name="runs", db_index=False
    )
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        on_delete=models.CASCADE,
        related_name="+",
        db_index=False,
    )
    user_message = models.ForeignKey(Message, on_delete=models.CASCADE, related_name="runs")
    reply_message_id = models.UUIDField(default=uuid7, editable=False)
    """Id of the reply, fixed at enqueue; the message row appears when the run ends."""
    retry_of = models.ForeignKey(
        "self",
        on_delete=models.SET_NULL,
        null=True,
        blank=True,
        related_name="retries",
        db_index=False,
    )
    agent = models.TextField()
    status = models.CharField(
        max_length=20,
        choices=RunStatus.choices,
        default=RunStatus.QUEUED,
        db_default=RunStatus.QUEUED,
    )
    input = models.JSONField(null=True, blank=True)
    """Snapshot of the request; nulled by retention."""
    metadata = models.JSONField(blank=True, default=dict, db_default={})
    limits = models.JSONField(null=True, blank=True)
    """What its request allows it to take, by names of `Limits`, and how long it may stand ready by
    its agent's limits as well; null: nothing beyond its agent's limits.
    """
    turn = models.PositiveIntegerField(default=0, db_default=0)
    """Number of its turn in the conversation; a retry has the turn of what it retries."""
    attempt = models.PositiveIntegerField(default=1, db_default=1)
    """1, and one more with each retry of the same message."""
    ready_at = models.DateTimeField(null=True, blank=True)
    """When this turn may start; null while it waits behind another turn of its conversation."""
    claim_token = models.UUIDField(null=True, blank=True)
    """The fence: minted by a claim, unchanged for its life, kept when the run has ended."""
    claim_expires_at = models.DateTimeField(null=True, blank=True)
    last_heartbeat_at = models.DateTimeField(null=True, blank=True)
    worker_id = models.TextField(blank=True, default="", db_default="")
    """`host:pid:suffix` of the worker that claimed it; for people, never for a decision."""
    cancel_requested = models.BooleanField(default=False, db_default=False)
    stop_requested_at = models.DateTimeField(null=True, blank=True)
    """When a stop was first asked for while it ran."""
    error = models.JSONField(null=True, blank=True)
    """`{"code", "message"}` of a failed run; fit for any reader."""
    traceback = models.TextField(blank=True, default="", db_default="")
    """What the agent raised; for staff only."""
    idempotency_key = models.TextField(null=True, blank=True)  # noqa: DJ001  null: none
    request_hash = models.TextField(blank=True, default="", db_default="")
    """Fingerprint of the request that used the idempotency key."""
    last_seq = models.PositiveIntegerField(null=True, blank=True)
    """Seq of `complete`, written by the ending."""
    answered_seq = models.PositiveIntegerField(null=True, blank=True)
    """Seq of the newest `input_received`; null where the run was never answered."""
    created_at = models.DateTimeField(db_default=Now())
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    trimmed_at = models.DateTimeField(null=True, blank=True)
    """When its journal and input were removed by retention."""
    trace_context = models.JSONField(null=True, blank=True)
    """The enqueue's trace, as the headers of W3C Trace Context; null where nothing is traced."""

    objects = QueueManager.from_queryset(AgentRunQuerySet)()

    class Meta:
        base_manager_name = "objects"
        permissions = [
            ("operate_agentrun", "Can stop, retry and end runs in the admin"),
            ("read_words", "Can read what people and agents said in the admin"),
            ("read_traceback", "Can read the tracebacks of failed runs in the admin"),
        ]
        # No index may name claim_expires_at or last_heartbeat_at, even in a condition: beats are
        # HOT updates.
        indexes = [
            models.Index(
                fields=["ready_at", "id"],
                condition=MARKED,
                name="agentruns_startable",
            ),
            models.Index(
                fields=["ready_at"],
                condition=Q(status=RunStatus.QUEUED, limits__has_key="queue_seconds"),
                name="agentruns_queue_limited",
            ),
            models.Index(
                fields=["conversation", "turn", "attempt"],
                condition=Q(status=RunStatus.QUEUED),
                name="agentruns_waiting",
            ),
            models.Index(fields=["conversation", "turn", "attempt"], name="agentruns_turns"),
            models.Index(fields=["user", "-created_at", "-id"], name="agentruns_user_runs"),
            models.Index(
                fields=["retry_of"],
                condition=Q(retry_of__isnull=False),
                name="agentruns_retries",
            ),
            models.Index(
                fields=["finished_at"],
                condition=Q(finished_at__isnull=False, trimmed_at__isnull=True),
                name="agentruns_untrimmed",
            ),
            models.Index(
                fields=["-finished_at"],
                condition=Q(status=RunStatus.FAILED),
                name="agentruns_failures",
            ),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["conversation"],
                condition=Q(status__in=HOLDING),
                name="one_running_per_conversation",
            ),
            models.UniqueConstraint(
                fields=["user", "idempotency_key"],
                condition=Q(idempotency_key__isnull=False),
                name="one_run_per_idempotency_key",
            ),
            models.CheckConstraint(
                condition=Q(status__in=RunStatus.values),
                name="a_run_has_a_known_status",
            ),
            models.CheckConstraint(
                condition=~Q(status=RunStatus.QUEUED)
                | Q(
                    Q(started_at__isnull=True) | Q(answered_seq__isnull=False),
                    claim_token__isnull=True,
                    claim_expires_at__isnull=True,
                    finished_at__isnull=True,
                ),
                name="a_queued_run_is_unclaimed",
            ),
            models.CheckConstraint(
                condition=~Q(status=RunStatus.WAITING)
                | Q(
                    claim_token__isnull=True,
                    claim_expires_at__isnull=True,
                    started_at__isnull=False,
                    finished_at__isnull=True,
                ),
                name="a_waiting_run_is_unclaimed",
            ),
            models.CheckConstraint(
                condition=~Q(status=RunStatus.RUNNING)
                | Q(
                    claim_token__isnull=False,
                    claim_expires_at__isnull=False,
                    started_at__isnull=False,
                    finished_at__isnull=True,
                ),
                name="a_running_run_is_claimed",
            ),
            models.CheckConstraint(
                condition=~Q(status__in=TERMINAL) | Q(finished_at__isnull=False),
                name="an_ended_run_has_finished_at",
            ),
            # Claims and sweeps calculate with them: one that is no number would fail them all.
            models.CheckConstraint(
                condition=~Q(JsonPathExists(F("limits"), NO_LIMIT)),
                name="limits_are_positive_numbers",
            ),
        ]

    replayed = False
    """Set on the instance that `enqueue_run` returns for an idempotency key that was used
    before.
    """

    def __str__(self) -> str:
        return f"run {self.pk}"

    @property
    def has_ended(self) -> bool:
        return self.status in TERMINAL


class RunEvent(models.Model):
    """One row of a run's journal. Rows are only ever inserted, and deleted with their whole run's
    journal.
    """

    pk = models.CompositePrimaryKey("run_id", "seq")
    run = models.ForeignKey(
        AgentRun, on_delete=models.CASCADE, related_name="events", db_index=False
    )
    seq = models.PositiveIntegerField()
    """From 1, without gaps."""
    type = models.TextField()
    payload = models.JSONField(default=dict)
    created_at = models.DateTimeField(db_default=Now())

    objects = QueueManager()

    class Meta:
        base_manager_name = "objects"
        constraints = [
            models.UniqueConstraint(
                fields=["run"],
                condition=Q(type="complete"),
                name="one_complete_per_run",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.type} {self.seq} of run {self.run_id}"


class Step(models.Model):
    """A thing that `run.once` does for one message, in whichever attempt."""

    pk = models.CompositePrimaryKey("user_message_id", "name")
    user_message = models.ForeignKey(
        Message, on_delete=models.CASCADE, related_name="steps", db_index=False
    )
    name = models.TextField()
    run_id = models.UUIDField()
    """The run in which it began; for people."""
    mark = models.UUIDField()
    """The call that began it."""
    started_at = models.DateTimeField(db_default=Now())
    done_at = models.DateTimeField(null=True, blank=True)
    """Null: nobody knows whether it took effect."""
    result = models.JSONField(null=True, blank=True)

    objects = QueueManager()

    class Meta:
        base_manager_name = "objects"
        default_permissions = ()

    def __str__(self) -> str:
        return f"step {self.name!r} of message {self.user_message_id}"


class QuestionQuerySet(models.QuerySet["Question"]):
    """Adjectives: each narrows, none writes."""

    def of(self, run: AgentRun) -> Self:
        """Asked by this run, rather than by an earlier attempt at its message."""
        return self.filter(user_message_id=run.user_message_id, run_id=run.pk)

    def unanswered(self) -> Self:
        return self.filter(answered_at=None)

    def late(self) -> Self:
        """Unanswered past its time, by the database's clock."""
        return self.unanswered().filter(expires_at__lte=ClockTimestamp())


class Question(models.Model):
    """What a run asked a person, for one message, in whichever attempt; and the answer."""

    pk = models.CompositePrimaryKey("user_message_id", "key")
    user_message = models.ForeignKey(
        Message, on_delete=models.CASCADE, related_name="questions", db_index=False
    )
    key = models.TextField()
    run_id = models.UUIDField()
    """The run that asked."""
    question = models.JSONField()
    asked_at = models.DateTimeField(db_default=Now())
    expires_at = models.DateTimeField()
    """The run fails where no answer came before this time."""
    answer = models.JSONField(null=True, blank=True)
    answered_at = models.DateTimeField(null=True, blank=True)
    """Null: its run waits for the answer. A question whose run ended without one is deleted."""

    objects = QueueManager.from_queryset(QuestionQuerySet)()

    class Meta:
        base_manager_name = "objects"
        default_permissions = ()
        indexes = [
            models.Index(
                fields=["expires_at"],
                condition=Q(answered_at__isnull=True),
                name="agentruns_unanswered",
            ),
        ]

    def __str__(self) -> str:
        return f"question {self.key!r} of run {self.run_id}"


class SeenWorker(models.Model):
    """A worker process as it was last seen, one row each: for people and probes.

    Nothing that runs or ends a run reads it; a worker without a row works as well as any.
    """

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    worker_id = models.TextField()
    """`host:pid:suffix`, or what `--worker-id` said: two processes may bear one name."""
    agents = models.JSONField(default=list)
    slots = models.PositiveIntegerField()
    busy = models.PositiveIntegerField()
    """Slots taken, those of code that ignores its cancellation included."""
    draining = models.BooleanField(default=False)
    reaps = models.BooleanField(default=True)
    started_at = models.DateTimeField()
    seen_at = models.DateTimeField()
    gone_at = models.DateTimeField()
    """When it counts as gone, unless it is seen again before."""

    objects = QueueManager()

    class Meta:
        base_manager_name = "objects"
        db_table = "agentruns_worker"
        default_permissions = ()

    def __str__(self) -> str:
        return self.worker_id
