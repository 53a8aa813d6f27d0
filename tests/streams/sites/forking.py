"""Follow a run in this process, then in a fork of it, as servers that load the app first do."""

from __future__ import annotations

import asyncio
import os
import sys
from uuid import UUID

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
django.setup()

from agentruns.tail import tail


async def count(run_id: UUID) -> int:
    return sum([len(batch) async for batch in tail(run_id, 0)])


def main() -> None:
    run_id = UUID(sys.argv[1])
    print(f"parent:{asyncio.run(count(run_id))}", flush=True)
    if pid := os.fork():
        _, status = os.waitpid(pid, 0)
        sys.exit(os.waitstatus_to_exitcode(status))
    print(f"child:{asyncio.run(count(run_id))}", flush=True)
    os._exit(0)


main()
