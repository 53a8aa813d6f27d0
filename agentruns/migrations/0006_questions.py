"""Runs that wait for a person's answer, and what they asked."""

import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models
from django.db.models import Q

STATUS_MOVES = """
CREATE OR REPLACE FUNCTION agentruns_check_status_move() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'run % cannot move from % to %: a run moves from queued to running, cancelled '
        'or failed, from running to waiting, completed, failed or cancelled, from waiting to '
        'queued, cancelled or failed, and an ended run stays as it ended',
        OLD.id, OLD.status, NEW.status
        USING ERRCODE = 'check_violation', CONSTRAINT = 'status_only_moves_forward',
            TABLE = 'agentruns_agentrun';
END
$$;
DROP TRIGGER status_only_moves_forward ON agentruns_agentrun;
CREATE TRIGGER status_only_moves_forward BEFORE UPDATE OF status ON agentruns_agentrun
    FOR EACH ROW WHEN (OLD.status IS DISTINCT FROM NEW.status AND NOT (
        (OLD.status = 'queued' AND NEW.status IN ('running', 'cancelled', 'failed'))
        OR (OLD.status = 'running'
            AND NEW.status IN ('waiting', 'completed', 'failed', 'cancelled'))
        OR (OLD.status = 'waiting' AND NEW.status IN ('queued', 'cancelled', 'failed'))))
    EXECUTE FUNCTION agentruns_check_status_move();
"""

STATUS_MOVES_REVERSED = """
CREATE OR REPLACE FUNCTION agentruns_check_status_move() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'run % cannot move from % to %: a run moves from queued to running, cancelled '
        'or failed, from running to completed, failed or cancelled, and an ended run stays as it '
        'ended', OLD.id, OLD.status, NEW.status
        USING ERRCODE = 'check_violation', CONSTRAINT = 'status_only_moves_forward',
            TABLE = 'agentruns_agentrun';
END
$$;
DROP TRIGGER status_only_moves_forward ON agentruns_agentrun;
CREATE TRIGGER status_only_moves_forward BEFORE UPDATE OF status ON agentruns_agentrun
    FOR EACH ROW WHEN (OLD.status IS DISTINCT FROM NEW.status AND NOT (
        (OLD.status = 'queued' AND NEW.status IN ('running', 'cancelled', 'failed'))
        OR (OLD.status = 'running' AND NEW.status IN ('completed', 'failed', 'cancelled'))))
    EXECUTE FUNCTION agentruns_check_status_move();
"""

# What came before knows no run that waits, and none that started and is queued: they end as by a
# stop, so that each can be retried. The constraints on what is written are looked at now, since a
# table with checks to come cannot be altered.
STOP_SUSPENDED = """
WITH ended AS (
    UPDATE agentruns_agentrun run SET status = 'cancelled', finished_at = clock_timestamp(),
        last_seq = (SELECT COALESCE(max(event.seq), 0) + 1 FROM agentruns_runevent event
            WHERE event.run_id = run.id)
    WHERE status = 'waiting' OR (status = 'queued' AND started_at IS NOT NULL)
    RETURNING id, conversation_id, reply_message_id, last_seq
),
said AS (
    SELECT ended.*, COALESCE((
        SELECT string_agg(event.payload ->> 'delta', '' ORDER BY event.seq)
        FROM agentruns_runevent event WHERE event.run_id = ended.id AND
            event.type = 'content_delta' AND event.payload ->> 'stream' = 'text'), '') AS content
    FROM ended
),
reply AS (
    INSERT INTO agentruns_message (id, conversation_id, role, content, parts, status, position,
        created_at)
    SELECT reply_message_id, conversation_id, 'assistant', content, '[]', 'partial',
        (SELECT COALESCE(max(earlier.position), 0) + 1 FROM agentruns_message earlier WHERE
            earlier.conversation_id = said.conversation_id),
        clock_timestamp()
    FROM said WHERE content <> ''
)
INSERT INTO agentruns_runevent (run_id, seq, type, payload, created_at)
SELECT id, last_seq, 'complete', jsonb_build_object('status', 'cancelled', 'error', NULL,
    'message_id', CASE WHEN content <> '' THEN reply_message_id END), clock_timestamp()
FROM said;
SET CONSTRAINTS ALL IMMEDIATE;
"""


class Migration(migrations.Migration):
    dependencies = [("agentruns", "0005_limits")]

    operations = [
        migrations.CreateModel(
            name="Question",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "user_message_id",
                        "key",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("key", models.TextField()),
                ("run_id", models.UUIDField()),
                ("question", models.JSONField()),
                (
                    "asked_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                ),
                ("expires_at", models.DateTimeField()),
                ("answer", models.JSONField(blank=True, null=True)),
                ("answered_at", models.DateTimeField(blank=True, null=True)),
                (
                    "user_message",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="questions",
                        to="agentruns.message",
                    ),
                ),
            ],
            options={"base_manager_name": "objects", "default_permissions": ()},
        ),
        migrations.AddIndex(
            model_name="question",
            index=models.Index(
                condition=Q(answered_at__isnull=True),
                fields=["expires_at"],
                name="agentruns_unanswered",
            ),
        ),
        migrations.RemoveConstraint("agentrun", "one_running_per_conversation"),
        migrations.RemoveConstraint("agentrun", "a_run_has_a_known_status"),
        migrations.RemoveConstraint("agentrun", "a_queued_run_is_unclaimed"),
        migrations.AddField(
            model_name="agentrun",
            name="answered_seq",
            field=models.PositiveIntegerField(blank=True, null=True),
        ),
        migrations.AlterField(
            model_name="agentrun",
            name="status",
            field=models.CharField(
                choices=[
                    ("queued", "Queued"),
                    ("running", "Running"),
                    ("waiting", "Waiting"),
                    ("completed", "Completed"),
                    ("failed", "Failed"),
                    ("cancelled", "Cancelled"),
                ],
                db_default="queued",
                default="queued",
                max_length=20,
            ),
        ),
        migrations.AddConstraint(
            model_name="agentrun",
            constraint=models.UniqueConstraint(
                condition=Q(status__in=("running", "waiting")),
                fields=("conversation",),
                name="one_running_per_conversation",
            ),
        ),
        migrations.AddConstraint(
            model_name="agentrun",
            constraint=models.CheckConstraint(
                condition=Q(
                    status__in=["queued", "running", "waiting", "completed", "failed", "cancelled"]
                ),
                name="a_run_has_a_known_status",
            ),
        ),
        migrations.AddConstraint(
            model_name="agentrun",
            constraint=models.CheckConstraint(
                condition=~Q(status="queued")
                | Q(
                    Q(started_at__isnull=True) | Q(answered_seq__isnull=False),
                    claim_token__isnull=True,
                    claim_expires_at__isnull=True,
                    finished_at__isnull=True,
                ),
                name="a_queued_run_is_unclaimed",
            ),
        ),
        migrations.AddConstraint(
            model_name="agentrun",
            constraint=models.CheckConstraint(
                condition=~Q(status="waiting")
                | Q(
                    claim_token__isnull=True,
                    claim_expires_at__isnull=True,
                    started_at__isnull=False,
                    finished_at__isnull=True,
                ),
                name="a_waiting_run_is_unclaimed",
            ),
        ),
        migrations.RunSQL(STATUS_MOVES, STATUS_MOVES_REVERSED),
        migrations.RunSQL(migrations.RunSQL.noop, STOP_SUSPENDED),
    ]
