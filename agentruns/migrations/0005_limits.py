from django.db import migrations, models


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
    ]
