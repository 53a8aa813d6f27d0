"""Make a user and a run that has ended, in the database of the site; prints the run and a token."""

from __future__ import annotations

import os
import sys

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
django.setup()

from django.contrib.auth import get_user_model
from django.core.management import call_command

from agentruns import enqueue_run, stop_run, tokens

call_command("migrate", run_syncdb=True, verbosity=0)
user = get_user_model().objects.create(username=sys.argv[1])
run = enqueue_run(conversation=None, user=user, content="Hello", agent="counting")
stop_run(run)
print(run.pk, tokens.issue(run, user))
