from django.conf import settings
from django.db import migrations, models

import agentruns.ids


class Migration(migrations.Migration):
    dependencies = [
        ("agentruns", "0002_guarantees"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="SeenWorker",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=agentruns.ids.uuid7,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("worker_id", models.TextField()),
                ("agents", models.JSONField(default=list)),
                ("slots", models.PositiveIntegerField()),
                ("busy", models.PositiveIntegerField()),
                ("draining", models.BooleanField(default=False)),
                ("reaps", models.BooleanField(default=True)),
                ("started_at", models.DateTimeField()),
                ("seen_at", models.DateTimeField()),
                ("gone_at", models.DateTimeField()),
            ],
            options={
                "base_manager_name": "objects",
                "db_table": "agentruns_worker",
                "default_permissions": (),
            },
        ),
        migrations.AlterModelOptions(
            name="agentrun",
            options={
                "base_manager_name": "objects",
                "permissions": [
                    ("operate_agentrun", "Can stop, retry and end runs in the admin"),
                    ("read_words", "Can read what people and agents said in the admin"),
                    ("read_traceback", "Can read the tracebacks of failed runs in the admin"),
                ],
            },
        ),
        migrations.AlterModelOptions(name="conversation", options={"base_manager_name": "objects"}),
        migrations.AlterModelOptions(name="message", options={"base_manager_name": "objects"}),
        migrations.AlterModelOptions(name="runevent", options={"base_manager_name": "objects"}),
        migrations.AddField(
            model_name="agentrun",
            name="stop_requested_at",
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="agentrun",
            name="trace_context",
            field=models.JSONField(blank=True, null=True),
        ),
        migrations.AddIndex(
            model_name="agentrun",
            index=models.Index(
                condition=models.Q(("status", "failed")),
                fields=["-finished_at"],
                name="agentruns_failures",
            ),
        ),
    ]
