"""OpenAI's own Python SDK, strict, against real servers and a real worker."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from agentruns.models import AgentRun
from tests.support import until

from .conftest import SERVERS, Site, new_token
from .packages import needed
from .proxy import CuttingProxy
from .story import ARGUMENTS, RESULTS, TEXT

openai = needed("openai")


Connect = Callable[..., Any]


@pytest.fixture
def connect(site: Site, token: str) -> Iterator[Connect]:
    """A client of the SDK; all of a test's clients are of one user, unless told otherwise."""
    clients: list[Any] = []

    def connect(kind: str = "uvicorn", *, port: int = 0, key: str = token, retries: int = 0) -> Any:
        client = openai.OpenAI(
            base_url=f"http://127.0.0.1:{port or site.ports[kind]}/v1",
            api_key=key,
            max_retries=retries,
            timeout=60,
            _strict_response_validation=True,
        )
        clients.append(client)
        return client

    yield connect
    for client in clients:
        client.close()


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    return tmp_path / "gate"


def start(client: Any, model: str = "story", **more: Any) -> Any:
    return client.responses.create(model=model, input="Go", background=True, **more)


def replay(client: Any, response_id: str, **more: Any) -> list[Any]:
    with client.responses.retrieve(response_id, stream=True, **more) as stream:
        return list(stream)


def numbers(frames: list[Any]) -> list[int]:
    return [frame.sequence_number for frame in frames]


def check_story(response: Any) -> None:
    items = response.output
    assert response.status == "completed"
    assert response.output_text == TEXT
    calls = [item for item in items if item.type == "function_call"]
    results = [item for item in items if item.type == "function_call_output"]
    assert [(call.name, call.arguments) for call in calls] == [
        (name, json.dumps(arguments)) for name, arguments in ARGUMENTS
    ]
    assert [result.output for result in results] == RESULTS
    assert [call.call_id for call in calls] == [result.call_id for result in results]
    assert [item.summary[0].text for item in items if item.type == "reasoning"] == ["Let me think."]
    assert (response.usage.input_tokens, response.usage.output_tokens) == (11, 23)


@pytest.mark.parametrize("kind", SERVERS)
@pytest.mark.parametrize("cut_after", [700, 2_500, 5_000])
def test_a_stream_that_was_cut_goes_on_where_it_was(
    connect: Connect, site: Site, gate: Path, kind: str, cut_after: int
) -> None:
    proxy = CuttingProxy(site.ports[kind], cut_after)
    cut, client = connect(port=proxy.port), connect(kind)
    seen: list[Any] = []

    with (
        suppress(Exception),
        cut.responses.create(
            model="story", input="Go", background=True, stream=True, metadata={"gate": str(gate)}
        ) as stream,
    ):
        for frame in stream:
            seen.append(frame)
    assert proxy.was_cut
    gate.touch()
    run = until(lambda: AgentRun.objects.order_by("-created_at").first(), "the run")
    response_id = f"resp_{run.pk.hex}"
    after = {"starting_after": seen[-1].sequence_number} if seen else {}
    rest = replay(client, response_id, **after)
    whole = replay(client, response_id)
    proxy.close()

    assert [*seen, *rest] == whole
    assert all(left < right for left, right in pairwise(numbers(whole)))
    check_story(whole[-1].response)
    check_story(client.responses.retrieve(response_id))


def test_every_cursor_leads_to_the_rest(connect: Connect) -> None:
    client, other = connect("uvicorn"), connect("daphne")
    whole = replay(client, start(client).id)

    for count, number in enumerate(numbers(whole), start=1):
        rest = replay(other, whole[0].response.id, starting_after=number)
        assert rest == whole[count:]


def test_the_helper_streams_and_comes_back(connect: Connect) -> None:
    client = connect()

    with client.responses.stream(model="story", input="Go", background=True) as stream:
        events = list(stream)
        final = stream.get_final_response()
    middle = events[len(events) // 2].sequence_number
    with client.responses.stream(response_id=final.id, starting_after=middle) as stream:
        rest = list(stream)
        again = stream.get_final_response()

    check_story(final)
    check_story(again)
    assert numbers(rest) == [number for number in numbers(events) if number > middle]


@pytest.mark.parametrize("kind", SERVERS)
def test_a_request_may_wait_for_the_end(connect: Connect, gate: Path, kind: str) -> None:
    client = connect(kind)
    timer = threading.Timer(2.5, gate.touch)  # longer than two keepalives: spaces before the JSON
    timer.start()

    response = client.responses.create(model="story", input="Go", metadata={"gate": str(gate)})

    timer.join()
    check_story(response)
    assert response.metadata == {"gate": str(gate)}


def test_a_conversation_goes_on_and_a_busy_one_queues(connect: Connect, gate: Path) -> None:
    client = connect()
    conversation = client.conversations.create(metadata={"topic": "runs"})
    first = start(client, conversation=conversation.id, metadata={"gate": str(gate)})
    second = start(client, conversation=conversation.id)
    third = start(client, previous_response_id=second.id)

    assert {first.conversation.id, second.conversation.id, third.conversation.id} == {
        conversation.id
    }
    assert client.responses.retrieve(second.id).status == "queued"
    gate.touch()
    check_story(replay(client, third.id)[-1].response)
    assert third.previous_response_id == second.id
    said = client.responses.input_items.list(third.id).data
    assert [(item.role, item.content[0].text) for item in said] == [("user", "Go")]
    items = client.conversations.items.list(conversation.id, order="asc", limit=100).data
    assert [item.role for item in items if item.type == "message"] == ["user", "assistant"] * 3


def test_a_request_that_waits_is_answered_when_the_run_asks(connect: Connect) -> None:
    client = connect()

    response = client.responses.create(model="curious", input="Go")

    assert (response.status, response.output_text) == ("in_progress", "May I? ")
    assert client.responses.cancel(response.id).status == "cancelled"


@pytest.mark.parametrize("kind", SERVERS)
def test_a_stop_from_another_client_ends_the_stream(connect: Connect, kind: str) -> None:
    client, other = connect(kind), connect()
    frames: list[Any] = []

    with client.responses.create(
        model="endless", input="Go", background=True, stream=True
    ) as stream:
        for frame in stream:
            frames.append(frame)
            if frame.type == "response.function_call_arguments.done":
                other.responses.cancel(frames[0].response.id)

    final = frames[-1].response
    assert (frames[-1].type, final.status) == ("response.incomplete", "cancelled")
    assert final.output_text == "On and on"
    assert client.responses.cancel(final.id) == client.responses.retrieve(final.id)


def test_a_failure_is_a_failed_response_with_the_text_so_far(connect: Connect) -> None:
    client = connect()

    final = replay(client, start(client, "faulty").id)[-1]
    waited = client.responses.create(model="faulty", input="Go")

    for response in (final.response, waited):
        assert response.status == "failed"
        assert (response.error.code, response.output_text) == ("server_error", "So far so good")
        assert "agent_error" in response.error.message
        assert "secret" not in response.error.message


def test_a_killed_worker_is_a_failed_response_with_the_text_so_far(
    connect: Connect, site: Site
) -> None:
    client, worker = connect(), site.work("doomed")
    frames: list[Any] = []

    with client.responses.create(
        model="doomed", input="Go", background=True, stream=True
    ) as stream:
        for frame in stream:
            frames.append(frame)
            if frame.type == "response.function_call_arguments.done":
                worker.kill()

    final = frames[-1].response
    assert (frames[-1].type, final.output_text) == ("response.failed", "On and on")
    assert "worker_lost" in final.error.message
    assert {item.status for item in final.output if item.type == "message"} == {"completed"}


def test_two_viewers_see_the_same(connect: Connect, gate: Path) -> None:
    clients = [connect("uvicorn"), connect("daphne")]
    run = start(clients[0], metadata={"gate": str(gate)})
    seen: list[list[Any]] = [[], []]

    def watch(number: int) -> None:
        seen[number] = replay(clients[number], run.id)

    viewers = [threading.Thread(target=watch, args=(number,)) for number in (0, 1)]
    for viewer in viewers:
        viewer.start()
    gate.touch()
    for viewer in viewers:
        viewer.join(60)

    assert seen[0] == seen[1]
    check_story(seen[0][-1].response)


def test_refusals_are_the_sdks_own_errors_and_are_not_retried(connect: Connect) -> None:
    client, stranger = connect(retries=2), connect(key=new_token(), retries=2)
    mine = replay(client, start(client).id)[-1].response

    with pytest.raises(openai.NotFoundError):
        stranger.responses.retrieve(mine.id)
    with pytest.raises(openai.NotFoundError):
        stranger.responses.create(model="story", input="Go", previous_response_id=mine.id)
    with pytest.raises(openai.AuthenticationError):
        connect(key="nobody").responses.retrieve(mine.id)
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model="stori", input="Go")
    assert (refused.value.param, refused.value.code) == ("model", "model_not_found")
    assert "Did you mean 'story'?" in refused.value.message
    with pytest.raises(openai.NotFoundError, match="not supported"):
        client.chat.completions.create(model="story", messages=[])
    client.responses.delete(mine.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(mine.id)


def test_a_key_makes_a_second_request_the_first(connect: Connect) -> None:
    client = connect()
    once = {"extra_headers": {"Idempotency-Key": "k"}}

    first, again = start(client, **once), start(client, **once)

    assert first.id == again.id
    with pytest.raises(openai.UnprocessableEntityError):
        client.responses.create(model="story", input="Another", background=True, **once)
