"""The enqueue's trace travels on the run; spans for the queue, the run and its tools."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from agentruns import enqueue_run, tracing
from agentruns.agents import _agents, agent
from agentruns.claim import claim, new_tokens
from agentruns.conf import get_config
from agentruns.fence import Fence
from agentruns.models import AgentRun
from agentruns.reaper import reap
from agentruns.retry import retry_run
from tests.factories import AgentRunFactory, UserFactory

pytestmark = pytest.mark.django_db
exporter = InMemorySpanExporter()


@pytest.fixture(scope="module")
def provider() -> TracerProvider:
    """One for the process: OpenTelemetry takes no second."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return provider


@pytest.fixture
def spans(provider: TracerProvider) -> Iterator[InMemorySpanExporter]:
    exporter.clear()
    yield exporter
    exporter.clear()


def enqueue() -> AgentRun:
    return enqueue_run(conversation=None, user=UserFactory(), content="Hi", agent="assistant")


def test_nothing_is_stored_while_nothing_is_traced() -> None:
    run = enqueue()

    run.refresh_from_db()
    assert run.trace_context is None


def test_the_run_and_its_queue_are_children_of_the_enqueue(spans: InMemorySpanExporter) -> None:
    with trace.get_tracer("test").start_as_current_span("request") as request:
        run = enqueue()
    lease = timedelta(seconds=get_config().LEASE_SECONDS)
    [claimed] = claim(["assistant"], new_tokens(1), "worker", lease=lease)

    with tracing.run(claimed), tracing.tool("search", "call_1"):
        pass

    found = {span.name: span for span in spans.get_finished_spans()}
    assert set(found) == {"request", "agentruns.queue", "agentruns.run", "agentruns.tool"}
    trace_id = request.get_span_context().trace_id
    assert {span.context.trace_id for span in found.values()} == {trace_id}
    for name in ("agentruns.queue", "agentruns.run"):
        assert found[name].parent.span_id == request.get_span_context().span_id
        assert found[name].attributes["agentruns.run_id"] == str(run.pk)
    assert found["agentruns.tool"].parent.span_id == found["agentruns.run"].context.span_id
    queue = found["agentruns.queue"]
    assert queue.end_time > queue.start_time


def test_a_run_that_was_answered_has_its_queue_once(spans: InMemorySpanExporter) -> None:
    enqueue()
    lease = timedelta(seconds=get_config().LEASE_SECONDS)
    [claimed] = claim(["assistant"], new_tokens(1), "worker", lease=lease)

    for answered_seq in (None, 6):
        with tracing.run(replace(claimed, answered_seq=answered_seq)):
            pass

    names = [span.name for span in spans.get_finished_spans()]
    assert names == ["agentruns.queue", "agentruns.run", "agentruns.run"]


def test_a_tool_in_a_coroutine_is_a_child_of_its_own_run(spans: InMemorySpanExporter) -> None:
    runs = {enqueue().pk for _ in range(2)}
    lease = timedelta(seconds=get_config().LEASE_SECONDS)
    claimed = claim(["assistant"], new_tokens(2), "worker", lease=lease)

    async def both() -> None:
        await asyncio.gather(*(code(one) for one in claimed))

    async def code(one: Any) -> None:
        with tracing.run(one):
            await asyncio.sleep(0.01)
            with tracing.tool("search", str(one.run_id)):
                await asyncio.sleep(0.01)

    asyncio.run(both())

    finished = spans.get_finished_spans()
    by_id = {span.context.span_id: span for span in finished}
    tools = [span for span in finished if span.name == "agentruns.tool"]
    assert len(tools) == len(runs) == 2
    for tool in tools:
        parent = by_id[tool.parent.span_id]
        assert parent.attributes["agentruns.run_id"] == tool.attributes["agentruns.call_id"]


def test_an_error_of_the_agent_is_on_its_span(spans: InMemorySpanExporter) -> None:
    enqueue()
    lease = timedelta(seconds=get_config().LEASE_SECONDS)
    [claimed] = claim(["assistant"], new_tokens(1), "worker", lease=lease)

    with pytest.raises(RuntimeError), tracing.run(claimed):
        raise RuntimeError("broken")

    [run] = [span for span in spans.get_finished_spans() if span.name == "agentruns.run"]
    assert not run.status.is_ok


def test_a_retry_by_a_person_has_the_trace_of_the_person(spans: InMemorySpanExporter) -> None:
    failed = AgentRunFactory(failed=True, trace_context={"traceparent": "another"})

    with trace.get_tracer("test").start_as_current_span("retry") as asked:
        retry = retry_run(failed)

    trace_id = f"{asked.get_span_context().trace_id:032x}"
    assert trace_id in json.dumps(retry.trace_context)


def test_a_retry_by_the_reaper_keeps_the_trace_of_the_enqueue(provider: Any) -> None:
    lost = AgentRunFactory(
        expired=True, trace_context={"traceparent": "first"}, agent="traced-repeatable"
    )
    before = dict(_agents)
    agent("traced-repeatable", retry=True)(_repeatable)
    try:
        assert reap(Fence(lost.pk, lost.claim_token), lost.conversation_id, grace=timedelta(0))
    finally:
        _agents.clear()
        _agents.update(before)

    assert AgentRun.objects.get(retry_of=lost).trace_context == {"traceparent": "first"}


async def _repeatable(run: Any) -> None:
    await run.text("again")
