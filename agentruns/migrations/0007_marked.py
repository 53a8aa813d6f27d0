from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("agentruns", "0006_questions"),
    ]

    operations = [
        migrations.RemoveIndex(model_name="agentrun", name="agentruns_startable"),
        migrations.AddIndex(
            model_name="agentrun",
            index=models.Index(
                condition=models.Q(("ready_at__isnull", False), ("status__in", ("queued", ""))),
                fields=["ready_at", "id"],
                name="agentruns_startable",
            ),
        ),
    ]
