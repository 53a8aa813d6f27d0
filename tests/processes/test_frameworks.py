"""Agents of three frameworks through a real worker: the same events, whoever produces them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentruns import agents, enqueue_run, stop_run
from agentruns.models import AgentRun, Conversation, Message
from tests.agents import process
from tests.frameworks.responses import ResponsesServer
from tests.support import pointed_at, until

from .cluster import Cluster
from .history import ended, events, new_conversation, outcome, reply_of
from .worker import WorkerProcess

IMPORT_SECONDS = 100.0
"""The frameworks are large."""
FRAMEWORKS = ("pydantic_ai", "openai_agents", "langgraph")


@pytest.fixture(scope="module")
def responses() -> Iterator[ResponsesServer]:
    with ResponsesServer() as server:
        yield server


@pytest.fixture(scope="module")
def worker(
    cluster: Cluster,
    responses: ResponsesServer,
    django_db_blocker: Any,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[WorkerProcess]:
    """One for all: it takes seconds to import three frameworks."""
    url = cluster.create()
    log = tmp_path_factory.mktemp("frameworks") / "log"
    settings = {"settings_module": "tests.frameworks.settings", "STOP_GRACE_SECONDS": 10}
    with (
        django_db_blocker.unblock(),
        pointed_at(url),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("RESPONSES_URL", responses.url)
        for name in (*FRAMEWORKS, "pydantic_ai_typed"):  # known here, run there
            patch.setitem(agents._agents, name, agents.Agent(name, process))
        worker = WorkerProcess(url, log, (), settings)
        try:
            worker.wait_for_log("slots, agents", seconds=IMPORT_SECONDS)
            yield worker
        finally:
            worker.destroy()
            print(worker.log)
    cluster.drop(url)


@pytest.fixture(params=FRAMEWORKS)
def framework(worker: WorkerProcess, request: pytest.FixtureRequest) -> str:
    return str(request.param)


def ask(
    agent: str, content: str, *, trace: Path | None = None, of: Conversation | None = None
) -> AgentRun:
    return enqueue_run(
        conversation=of or new_conversation(),
        agent=agent,
        content=content,
        metadata={"trace": str(trace)} if trace else {},
    )


def told(run: AgentRun, type_: str) -> list[dict[str, Any]]:
    return [event.payload for event in events(run) if event.type == type_]


def called(trace: Path, times: int) -> None:
    until(lambda: trace.exists() and trace.read_text().count("called") == times, "the tools")


def test_text_reasoning_and_usage_are_journaled(framework: str) -> None:
    run = ended(ask(framework, "add"))

    assert outcome(run) == ("completed", None)
    assert reply_of(run) == "the sum is 3"
    assert "".join(event["delta"] for event in told(run, "reasoning_delta")) == "hm"
    usage = told(run, "usage")
    assert len(usage) == 2
    assert all(report["input_tokens"] > 0 and report["output_tokens"] > 0 for report in usage)


def test_parallel_calls_are_streamed_and_end_each_on_its_own(framework: str) -> None:
    run = ended(ask(framework, "add"))

    assert {call["call_id"]: call["name"] for call in told(run, "tool_call_started")} == {
        "c1": "add",
        "c2": "add",
    }
    streamed = {"c1": "", "c2": ""}
    for event in told(run, "tool_call_delta"):
        streamed[event["call_id"]] += event["delta"]
    assert streamed == {"c1": '{"a": 1, "b": 2}', "c2": '{"a": 7, "b": 2}'}
    whole = {event["call_id"]: event["arguments"] for event in told(run, "tool_call_arguments")}
    assert whole == {"c1": {"a": 1, "b": 2}, "c2": {"a": 7, "b": 2}}
    results = {event["call_id"]: event["result"] for event in told(run, "tool_call_finished")}
    assert {call: int(result) for call, result in results.items()} == {"c1": 3, "c2": 9}


def test_the_call_that_returns_first_ends_first(worker: WorkerProcess) -> None:
    run = ended(ask("pydantic_ai", "add"))

    assert [event["call_id"] for event in told(run, "tool_call_finished")] == ["c2", "c1"]


def test_the_next_turn_is_given_the_calls_of_the_last(
    framework: str, responses: ResponsesServer
) -> None:
    conversation = new_conversation()
    ended(ask(framework, "add", of=conversation))

    run = ended(ask(framework, "back", of=conversation))

    if framework == "openai_agents":
        given = responses.requests[-1]["input"]
        kinds = [item.get("type", item.get("role")) for item in given]
        calls, results = ["function_call"] * 2, ["function_call_output"] * 2
        assert kinds[:6] == ["user", *calls, *results, "assistant"]
        assert given[3] == {"type": "function_call_output", "call_id": "c1", "output": "3"}
        return
    kinds = [piece.partition("=")[0] for piece in (reply_of(run) or "").split(" | ")]
    assert (
        kinds
        == {
            "pydantic_ai": [
                "user-prompt",
                *["tool-call"] * 2,
                *["tool-return"] * 2,
                "text",
                "user-prompt",
            ],
            "langgraph": ["human", "ai", "tool", "tool", "ai", "human"],
        }[framework]
    )


def test_a_tool_that_raises_fails_the_run_and_ends_every_call_that_began(
    framework: str, tmp_path: Path
) -> None:
    run = ended(ask(framework, "fail", trace=tmp_path / "trace"))

    assert outcome(run) == ("failed", "agent_error")
    assert "NoSevens" in run.traceback
    finished = told(run, "tool_call_finished")
    began = {event["call_id"] for event in told(run, "tool_call_started")}
    assert {event["call_id"] for event in finished} == began
    if framework != "openai_agents":  # which drops the events that it has not given out
        assert began == {"c1", "c2"}
    assert "secret" not in str(finished)
    assert told(run, "usage")


def test_a_stop_in_mid_tool_cancels_the_tool_and_keeps_what_was(
    framework: str, tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    run = ask(framework, "slow", trace=trace)
    called(trace, 2)

    stop_run(run)

    assert outcome(ended(run)) == ("cancelled", None)
    assert "cancelled" in trace.read_text()
    assert told(run, "usage")
    finished = {event["call_id"]: event for event in told(run, "tool_call_finished")}
    assert "error" in finished["c1"]
    parts = Message.objects.get(pk=run.reply_message_id).parts
    assert [part["call_id"] for part in parts] == ["c1", "c2"]


def test_a_stop_in_mid_answer_closes_the_providers_stream(
    framework: str, responses: ResponsesServer
) -> None:
    responses.client_left.clear()
    run = ask(framework, "hang")
    until(lambda: told(run, "content_delta"), "the first word")

    stop_run(run)

    assert outcome(ended(run)) == ("cancelled", None)
    assert (reply_of(run) or "")[:4] == "wait"
    if framework == "openai_agents":
        assert responses.client_left.wait(10)


def test_an_output_that_is_no_text_is_the_reply_as_json(worker: WorkerProcess) -> None:
    run = ended(ask("pydantic_ai_typed", "which city?"))

    assert outcome(run) == ("completed", None)
    assert reply_of(run) == '{"city": "Bern"}'


def test_a_call_that_the_model_has_to_repeat_ends_with_an_error(worker: WorkerProcess) -> None:
    run = ended(ask("pydantic_ai_typed", "how many?"))

    first, second, *_ = [
        event for event in told(run, "tool_call_finished") if event["name"] == "population"
    ]
    assert first["error"] == {"code": "tool_error", "message": "ask again"}
    assert second["result"] == 7


def test_what_a_graph_writes_is_an_event_of_its_own(worker: WorkerProcess) -> None:
    run = ended(ask("langgraph", "add"))

    assert told(run, "step") == [{"name": "think"}] * 2
