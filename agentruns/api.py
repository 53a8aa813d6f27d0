"""The verbs that callers use, and their twins for async code.

A twin runs on the thread of the caller's other async ORM calls.
"""

from __future__ import annotations

from .answer import answer_run
from .db import async_twin
from .enqueue import enqueue_run, enqueue_runs
from .retry import retry_run
from .stop import stop_conversation, stop_run

aanswer_run = async_twin(answer_run)
aenqueue_run = async_twin(enqueue_run)
aenqueue_runs = async_twin(enqueue_runs)
aretry_run = async_twin(retry_run)
astop_conversation = async_twin(stop_conversation)
astop_run = async_twin(stop_run)

__all__ = [
    "aanswer_run",
    "aenqueue_run",
    "aenqueue_runs",
    "answer_run",
    "aretry_run",
    "astop_conversation",
    "astop_run",
    "enqueue_run",
    "enqueue_runs",
    "retry_run",
    "stop_conversation",
    "stop_run",
]
