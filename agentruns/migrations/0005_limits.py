from django.db import migrations, models

import agentruns.models


class Migration(migrations.Migration):
    dependencies = [
        ("agentruns", "0004_steps"),
    ]

    operations = [
        migrations.AddField(
            model_name="agentrun",
            name="limits",
            field=models.JSONField(blank=True, null=True),
        ),
        migrations.AddIndex(
            model_name="agentrun",
            index=models.Index(
                condition=models.Q(("limits__has_key", "queue_seconds"), ("status", "queued")),
                fields=["ready_at"],
                name="agentruns_queue_limited",
            ),
        ),
        migrations.AddConstraint(
            model_name="agentrun",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    agentruns.models.JsonPathExists(
                        models.F("limits"),
                        models.Value(
                            '$.* ? (@.type() != "number" || @ <= 0 || @ > 1000000000000000)'
                        ),
                    ),
                    _negated=True,
                ),
                name="limits_are_positive_numbers",
            ),
        ),
    ]
