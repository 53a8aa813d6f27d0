#!/usr/bin/env python3
"""Run a command of the demo project; the first one sets up what the project needs."""

import os
import signal
import sys


def main():
    if sys.argv[1:2] == ["runworker"]:
        # Told to stop while it starts, a worker has nothing to drain; the command takes over later.
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    if sys.version_info < (3, 11):
        sys.exit(
            "This project needs Python 3.11 or newer; this is Python %s." % sys.version.split()[0]
        )
    from project import bootstrap

    bootstrap.ensure_dependencies()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
