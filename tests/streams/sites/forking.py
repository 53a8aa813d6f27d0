"""Follow a run in this process, then another in a fork of it, as servers that load the app first
do: the fork's run goes on while it is watched.
"""

from __future__ import annotations

import asyncio
import os
import sys
from uuid import UUID

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
django.setup()

from django.db import connections

from agentruns import stop_run
from agentruns.tail import tail


async def count(run_id: UUID, joined: int | None = None) -> int:
    events = 0
    async for batch in tail(run_id, 0):
        events += len(batch)
        if joined is not None:
            await asyncio.sleep(1)  # by then it has been handed over to the reader
            os.write(joined, b".")
            joined = None
    return events


def main() -> None:
    ended, waiting = map(UUID, sys.argv[1:])
    print(f"parent:{asyncio.run(count(ended))}", flush=True)
    heard, joined = os.pipe()
    if pid := os.fork():
        os.read(heard, 1)
        stop_run(waiting)
        connections.close_all()
        _, status = os.waitpid(pid, 0)
        sys.exit(os.waitstatus_to_exitcode(status))
    print(f"child:{asyncio.run(count(waiting, joined))}", flush=True)
    os._exit(0)


main()
