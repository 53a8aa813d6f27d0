"""A run whose worker is the test: it says what it is told to, by the engine's own verbs."""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db import transaction

from agentruns import agent, enqueue_run
from agentruns.claim import Claimed, claim, new_tokens
from agentruns.finalize import Ending, end_runs
from agentruns.journal import RunJournal, Standing, append
from agentruns.models import AgentRun, RunStatus

LEASE = timedelta(hours=1)
_numbers = itertools.count()


async def _nothing(run: object) -> None:
    """A told run has no code."""


class Told:
    """A run of its own conversation and agent; starts at once unless told not to."""

    def __init__(self, user: Any, *, start: bool = True) -> None:
        self.agent = f"told-{next(_numbers)}"
        agent(self.agent)(_nothing)
        self.row = enqueue_run(conversation=None, user=user, content="Tell me", agent=self.agent)
        self.journal = RunJournal(self.row.pk)
        if start:
            self.start()

    @property
    def id(self) -> UUID:
        return self.row.pk

    @property
    def events(self) -> str:
        return f"/api/runs/{self.id}/events"

    @property
    def socket(self) -> str:
        return f"/ws/runs/{self.id}"

    def start(self) -> None:
        [self.claimed] = claim([self.agent], new_tokens(1), "host:1:told", lease=LEASE)

    @property
    def _fence(self) -> Any:
        claimed: Claimed = self.claimed
        return claimed.fence

    def say(self, *texts: str) -> None:
        """Each text an event of its own, all in one transaction with one hint."""
        with transaction.atomic():
            for text in texts:
                self.journal.delta("content_delta", "stream", "text", text)
                self._store()

    def emit(self, type_: str, **payload: Any) -> None:
        self.journal.add(type_, payload)
        self._store()

    def end(self, status: RunStatus = RunStatus.COMPLETED, **fields: Any) -> None:
        ending = Ending(
            self._fence,
            self.row.conversation_id,
            status,
            seq=self.journal.next_seq,
            content=self.journal.reply.content,
            **fields,
        )
        assert end_runs([ending])[self.id].standing is Standing.HELD

    def refreshed(self) -> AgentRun:
        self.row.refresh_from_db()
        return self.row

    def _store(self) -> None:
        rows = self.journal.seal()
        assert append([(self._fence, rows)])[self.id] is Standing.HELD
        self.journal.stored(rows)
