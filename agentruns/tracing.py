"""Carry the enqueue's trace to the worker, for OpenTelemetry.

The context travels on the run's row as W3C Trace Context. Without `opentelemetry-api` (the extra
`tracing`), or while nothing is traced, the column stays null and no span is made.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from datetime import datetime
from typing import TYPE_CHECKING

try:
    from opentelemetry.propagate import extract, inject
    from opentelemetry.trace import (
        ProxyTracerProvider,
        SpanKind,
        get_tracer,
        get_tracer_provider,
    )
except ImportError:  # the extra is not installed
    enabled = False
else:
    enabled = True

if TYPE_CHECKING:
    from .claim import Claimed

NAME = "agentruns"


def current() -> dict[str, str] | None:
    """The trace that the caller is in, to be stored with the run; None where there is none."""
    if not enabled:
        return None
    carrier: dict[str, str] = {}
    inject(carrier)
    return carrier or None


def run(claimed: Claimed) -> AbstractContextManager[None]:
    """Around the agent's code: a span for the time in the queue, and one for the run, both children
    of the enqueue's.
    """
    # The stand-in of a process without an SDK makes nothing, at ten times the cost of asking.
    if not enabled or isinstance(get_tracer_provider(), ProxyTracerProvider):
        return contextlib.nullcontext()
    return _spans(claimed)


@contextlib.contextmanager
def _spans(claimed: Claimed) -> Iterator[None]:
    parent = extract(claimed.trace_context or {})
    tracer = get_tracer(NAME)
    attributes: dict[str, str | int] = {
        "agentruns.run_id": str(claimed.run_id),
        "agentruns.conversation_id": str(claimed.conversation_id),
        "agentruns.agent": claimed.agent,
        "agentruns.attempt": claimed.attempt,
    }
    if claimed.answered_seq is None:  # answered, it comes a second time, and started long ago
        queued = tracer.start_span(
            "agentruns.queue",
            parent,
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            start_time=_nanoseconds(claimed.created_at),
        )
        queued.end(_nanoseconds(claimed.started_at))
    with tracer.start_as_current_span("agentruns.run", parent, attributes=attributes):
        yield


@contextlib.contextmanager
def tool(name: str, call_id: str) -> Iterator[None]:
    """Around one tool call."""
    if not enabled:
        yield
        return
    attributes = {"agentruns.tool": name, "agentruns.call_id": call_id}
    with get_tracer(NAME).start_as_current_span("agentruns.tool", attributes=attributes):
        yield


def _nanoseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1_000_000) * 1000
