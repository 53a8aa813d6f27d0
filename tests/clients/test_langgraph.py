"""LangGraph's own Python SDK against real servers and a real worker."""

from __future__ import annotations

import asyncio
import uuid
import warnings
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from .conftest import SERVERS, Site, new_token
from .packages import needed
from .proxy import CuttingProxy
from .story import ARGUMENTS, RESULTS, TEXT

sdk = needed("langgraph_sdk")

INPUT = {"messages": [{"role": "user", "content": "Go"}]}
MODES = ["values", "messages-tuple", "updates", "custom"]

Connect = Callable[..., Any]


@pytest_asyncio.fixture
async def connect(site: Site, token: str) -> AsyncIterator[Connect]:
    """A client of the SDK; all of a test's clients are of one user, unless told otherwise."""
    clients: list[Any] = []

    def connect(kind: str = "uvicorn", *, port: int = 0, key: str = token) -> Any:
        url = f"http://127.0.0.1:{port or site.ports[kind]}/lg"
        clients.append(sdk.get_client(url=url, api_key=key))
        return clients[-1]

    yield connect
    for client in clients:
        await client.http.client.aclose()


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    return tmp_path / "gate"


async def new_thread(client: Any) -> str:
    return str((await client.threads.create())["thread_id"])


async def all_of(stream: Any, seen: Callable[[Any], Any] = lambda part: None) -> list[Any]:
    parts = []
    async with asyncio.timeout(90):
        async for part in stream:
            parts.append(part)
            seen(part)
    return parts


def check_story(values: Any) -> None:
    human, ai, *results = values["messages"][-4:]
    assert (human["type"], human["content"]) == ("human", "Go")
    assert (ai["type"], ai["content"]) == ("ai", TEXT)
    assert [(call["name"], call["args"]) for call in ai["tool_calls"]] == ARGUMENTS
    assert [result["content"] for result in results] == RESULTS
    assert [result["tool_call_id"] for result in results] == [
        call["id"] for call in ai["tool_calls"]
    ]


def streamed_text(parts: list[Any]) -> str:
    chunks = [part.data[0] for part in parts if part.event == "messages"]
    return "".join(chunk["content"] for chunk in chunks if chunk["type"] == "AIMessageChunk")


@pytest.mark.parametrize("kind", SERVERS)
@pytest.mark.parametrize("cut_after", [900, 2_500, 4_500])
async def test_a_stream_that_was_cut_goes_on_where_it_was(
    connect: Connect, site: Site, gate: Path, kind: str, cut_after: int
) -> None:
    proxy = CuttingProxy(site.ports[kind], cut_after)
    client = connect(port=proxy.port)
    thread_id = await new_thread(connect(kind))
    created: list[Any] = []

    def open_gate(part: Any) -> None:
        if proxy.was_cut:
            gate.touch()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the first cut may come before there is an id
        parts = await all_of(
            client.runs.stream(
                thread_id,
                "story",
                input=INPUT,
                stream_mode=MODES,
                metadata={"gate": str(gate)},
                on_run_created=created.append,
            ),
            open_gate,
        )
    proxy.close()
    whole = await all_of(connect(kind).runs.join_stream(thread_id, created[0]["run_id"]))

    assert proxy.was_cut
    assert parts == whole
    assert [parts[0].event, parts[-1].event] == ["metadata", "end"]
    assert streamed_text(parts) == TEXT
    check_story([part.data for part in parts if part.event == "values"][-1])


async def test_every_cursor_leads_to_the_rest(connect: Connect) -> None:
    client, other = connect("uvicorn"), connect("daphne")
    thread_id = await new_thread(client)
    run = await client.runs.create(thread_id, "story", input=INPUT, stream_mode=MODES)
    whole = await all_of(client.runs.join_stream(thread_id, run["run_id"]))

    for count, part in enumerate(whole, start=1):
        rest = other.runs.join_stream(thread_id, run["run_id"], last_event_id=part.id)
        assert await all_of(rest) == whole[count:]


@pytest.mark.parametrize("kind", SERVERS)
async def test_a_request_may_wait_for_the_end(connect: Connect, gate: Path, kind: str) -> None:
    client = connect(kind)
    thread_id, created = await new_thread(client), asyncio.Event()
    waiting = asyncio.create_task(
        client.runs.wait(
            thread_id,
            "story",
            input=INPUT,
            metadata={"gate": str(gate)},
            on_run_created=lambda _: created.set(),
        )
    )
    [run] = await until(lambda: client.runs.list(thread_id))
    joining = asyncio.create_task(connect().runs.join(thread_id, run["run_id"]))
    await until(lambda: client.runs.list(thread_id, status="running"))
    await asyncio.sleep(2.5)  # longer than two keepalives: spaces before the JSON
    gate.touch()

    check_story(await waiting)
    assert await joining == await waiting
    assert created.is_set()
    state = await client.threads.get_state(thread_id)
    assert state["values"] == await waiting
    history = await client.threads.get_history(thread_id)
    assert [len(state["values"]["messages"]) for state in history] == [4, 1]
    assert (await client.threads.get(thread_id))["status"] == "idle"


async def until(ask: Callable[[], Any]) -> Any:
    async with asyncio.timeout(60):
        while not (found := await ask()):
            await asyncio.sleep(0.05)
        return found


async def test_a_busy_thread_queues_refuses_or_is_interrupted(connect: Connect, gate: Path) -> None:
    client = connect()
    thread_id = await new_thread(client)

    async def create(strategy: str, agent: str = "story") -> Any:
        return await client.runs.create(thread_id, agent, input=INPUT, multitask_strategy=strategy)

    endless = await create("enqueue", "endless")
    queued = await create("enqueue")
    with pytest.raises(sdk.errors.ConflictError):
        await create("reject")
    last = await create("interrupt")
    check_story(await client.runs.join(thread_id, last["run_id"]))
    statuses = {run["run_id"]: run["status"] for run in await client.runs.list(thread_id, limit=9)}

    assert statuses == {
        endless["run_id"]: "interrupted",
        queued["run_id"]: "interrupted",
        last["run_id"]: "success",
    }


@pytest.mark.parametrize("kind", SERVERS)
async def test_a_stop_from_another_client_ends_the_stream(connect: Connect, kind: str) -> None:
    client, other = connect(kind), connect()
    thread_id = await new_thread(client)
    run = await client.runs.create(thread_id, "endless", input=INPUT, stream_mode=MODES)
    watching = asyncio.create_task(all_of(client.runs.join_stream(thread_id, run["run_id"])))
    await until(lambda: client.runs.list(thread_id, status="running"))

    await other.runs.cancel(thread_id, run["run_id"], wait=True)

    assert (await other.runs.get(thread_id, run["run_id"]))["status"] == "interrupted"
    assert (await watching)[-1].event == "end"
    await other.runs.cancel(thread_id, run["run_id"])


@pytest.mark.parametrize("kind", SERVERS)
async def test_a_question_interrupts_and_a_command_answers_it(connect: Connect, kind: str) -> None:
    client = connect(kind)
    thread_id = await new_thread(client)

    asked = await all_of(client.runs.stream(thread_id, "curious", input=INPUT, stream_mode=MODES))
    state = await client.threads.get_state(thread_id)
    (interrupt,) = state["interrupts"]

    assert [part.event for part in asked[-3:]] == ["updates", "values", "end"]
    assert asked[-3].data == {"__interrupt__": [interrupt]}
    assert asked[-2].data["__interrupt__"] == [interrupt]
    assert asked[-2].data["messages"][-1]["content"] == "May I? "
    assert interrupt["value"] == {"approve": "refund"}
    assert state["tasks"][0]["interrupts"] == [interrupt]
    assert (await client.threads.get(thread_id))["status"] == "interrupted"

    waited = await client.runs.wait(
        thread_id, "curious", command={"resume": {interrupt["id"]: "yes"}}
    )
    assert waited["messages"][-1]["content"] == "May I? You said yes. "
    assert waited["__interrupt__"][0]["value"] == "Whose is it?"
    (run,) = await client.runs.list(thread_id)
    assert await client.runs.join(thread_id, run["run_id"]) == waited

    rest = await all_of(
        client.runs.stream(thread_id, "curious", command={"resume": "Ann"}, stream_mode=MODES)
    )
    assert (rest[0].event, rest[0].data["run_id"]) == ("metadata", run["run_id"])
    assert (streamed_text(rest), rest[-1].event) == ("It is of Ann.", "end")
    values = [part.data for part in rest if part.event == "values"][-1]
    assert values["messages"][-1]["content"] == "May I? You said yes. It is of Ann."
    assert values == await client.runs.join(thread_id, run["run_id"])
    with pytest.raises(sdk.errors.ConflictError):
        await client.runs.create(thread_id, "curious", command={"resume": "Bob"})


async def test_a_failure_is_an_error_with_the_text_so_far(connect: Connect) -> None:
    client = connect()
    thread_id = await new_thread(client)

    parts = await all_of(client.runs.stream(thread_id, "faulty", input=INPUT))

    assert [part.event for part in parts[-3:]] == ["values", "error", "end"]
    assert parts[-3].data["messages"][-1]["content"] == "So far so good"
    assert parts[-2].data["error"] == "agent_error"
    assert "secret" not in str(parts[-2].data)
    with pytest.raises(Exception, match="agent_error"):
        await client.runs.wait(thread_id, "faulty", input=INPUT)
    assert (await client.threads.get(thread_id))["status"] == "error"


async def test_a_killed_worker_is_an_error_with_the_text_so_far(
    connect: Connect, site: Site
) -> None:
    client, worker = connect(), site.work("doomed")
    thread_id = await new_thread(client)

    def kill(part: Any) -> None:
        if part.event == "messages" and part.data[0]["tool_call_chunks"]:
            worker.kill()

    parts = await all_of(
        client.runs.stream(
            thread_id, "doomed", input=INPUT, stream_mode=["values", "messages-tuple"]
        ),
        kill,
    )

    assert [part.event for part in parts[-3:]] == ["values", "error", "end"]
    assert parts[-3].data["messages"][-1]["content"] == "On and on"
    assert parts[-2].data["error"] == "worker_lost"


async def test_two_viewers_see_the_same(connect: Connect, gate: Path) -> None:
    clients = connect("uvicorn"), connect("daphne")
    thread_id = await new_thread(clients[0])
    run = await clients[0].runs.create(
        thread_id, "story", input=INPUT, stream_mode=MODES, metadata={"gate": str(gate)}
    )
    views = [
        asyncio.create_task(all_of(client.runs.join_stream(thread_id, run["run_id"])))
        for client in clients
    ]
    await until(lambda: clients[0].runs.list(thread_id, status="running"))
    gate.touch()

    assert await views[0] == await views[1]
    assert streamed_text(await views[0]) == TEXT


@pytest.fixture
def strangers_token(site: Site) -> str:
    return new_token()


async def test_a_thread_id_is_ones_own(connect: Connect, strangers_token: str) -> None:
    client, stranger = connect(), connect(key=strangers_token)
    thread_id = str(uuid.uuid4())
    await client.threads.create(thread_id=thread_id, metadata={"topic": "mine"})
    with pytest.raises(sdk.errors.NotFoundError):
        await stranger.threads.get(thread_id)
    theirs = await stranger.threads.create(thread_id=thread_id)
    run = await client.runs.create(thread_id, "story", input=INPUT)

    assert theirs["metadata"] == {}
    assert await stranger.runs.list(thread_id) == []
    with pytest.raises(sdk.errors.NotFoundError):
        await stranger.runs.get(thread_id, run["run_id"])
    with pytest.raises(sdk.errors.ConflictError):
        await client.threads.create(thread_id=thread_id)
    again = await client.threads.create(thread_id=thread_id, if_exists="do_nothing")
    assert again["metadata"] == {"topic": "mine"}


async def test_without_a_thread_each_run_has_its_own(connect: Connect) -> None:
    client = connect()
    created: list[Any] = []

    parts = await all_of(
        client.runs.stream(None, "story", input=INPUT, on_run_created=created.append)
    )
    values = await client.runs.wait(None, "story", input=INPUT)

    check_story([part.data for part in parts if part.event == "values"][-1])
    check_story(values)
    assert len(values["messages"]) == 4
    run = await client.runs.get(created[0]["thread_id"], created[0]["run_id"])
    assert run["status"] == "success"


async def test_what_is_not_served_is_refused_in_words(connect: Connect) -> None:
    client = connect()
    thread_id = await new_thread(client)

    async def create(agent: str = "story", **more: Any) -> Any:
        return await client.runs.create(thread_id, agent, **{"input": INPUT, **more})

    with pytest.raises(sdk.errors.ConflictError, match="waits for an answer"):
        await create(input=None, command={"resume": True})
    with pytest.raises(sdk.errors.UnprocessableEntityError, match="stream_mode 'debug'"):
        await create(stream_mode="debug")
    with pytest.raises(sdk.errors.UnprocessableEntityError, match="multitask_strategy"):
        await create(multitask_strategy="rollback")
    with pytest.raises(sdk.errors.NotFoundError, match="Did you mean 'story'"):
        await create("stori")
    with pytest.raises(sdk.errors.NotFoundError, match="not supported"):
        await client.assistants.search()
    with pytest.raises(sdk.errors.NotFoundError):
        await client.runs.create("nowhere", "story", input=INPUT)
    assert await client.runs.list(thread_id) == []
    run = await client.runs.create("somewhere", "story", input=INPUT, if_not_exists="create")
    assert run["thread_id"] == "somewhere"
