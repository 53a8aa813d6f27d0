"""AG-UI's own HttpAgent, its verifier included."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.support import until

from .conftest import Driver, Site
from .proxy import CuttingProxy

pytestmark = pytest.mark.node
Drive = Callable[..., Driver]

TEXT = [
    "Once\u2028upon \x85 a \x0b time ",
    "there was a run that would not end before the gate. It opened 😀.",
]
CUTS = (1, 350, 500, 750, 900, 1100, 1300, 1500)
"""After how many bytes; the story says more than these before its gate."""


@pytest.fixture(params=["daphne", "uvicorn"])
def kind(request: Any) -> str:
    return request.param  # type: ignore[no-any-return]


def check_story(messages: list[dict[str, Any]]) -> None:
    """All of the story, once and in order."""
    assert [message["role"] for message in messages] == [
        *("user", "reasoning", "assistant", "tool", "tool", "assistant"),
    ]
    user, reasoning, opening, *results, rest = messages
    assert (user["content"], reasoning["content"]) == ("Hello", "Let me think.")
    assert [opening["content"], rest["content"]] == TEXT
    calls = [call["function"] for call in opening["toolCalls"]]
    assert [(call["name"], json.loads(call["arguments"])) for call in calls] == [
        ("search", {"q": "漢字"}),
        ("add", {"a": 1}),
    ]
    said = [json.loads(result["content"]) for result in results]
    assert said == [{"found": ["\u2028", None, 1.5]}, 2]


def check_success(seen: dict[str, Any]) -> None:
    check_story(seen["messages"])
    assert seen["errors"] == []
    (end,) = seen["ends"]
    assert end["outcome"] == {"type": "success"}
    assert end["usage"] == [{"inputTokens": 11, "outputTokens": 23}]


def test_a_whole_run(drive: Drive, kind: str) -> None:
    seen = drive("agui.mjs", "whole", kind).result()

    check_success(seen)
    assert seen["customs"] == ["progress"]


@pytest.fixture
def proxies(site: Site, kind: str) -> Iterator[list[CuttingProxy]]:
    made = [CuttingProxy(site.ports[kind], cut_after) for cut_after in CUTS]
    yield made
    for proxy in made:
        proxy.close()


def test_cut_anywhere_and_attached_again_nothing_is_missing_or_doubled(
    drive: Drive, kind: str, proxies: list[CuttingProxy]
) -> None:
    ports = [proxy.port for proxy in proxies]

    seen = drive("agui.mjs", "cut", kind, ports=ports).result()

    assert all(proxy.was_cut for proxy in proxies)
    for one in seen:
        assert one["messages"][0]["id"].startswith("m-")
        check_story(one["messages"])
        assert len(one["ends"]) == 1


def test_viewers_come_and_go_and_the_run_goes_on(drive: Drive) -> None:
    seen = drive("agui.mjs", "viewers").result()

    for viewer in seen["all"]:
        check_success(viewer)
    assert seen["all"][0]["messages"] == seen["all"][1]["messages"]
    assert (seen["fresh"]["messages"], seen["fresh"]["errors"]) == ([], [])


def test_a_thread_of_two_turns_is_shown_in_order(drive: Drive) -> None:
    seen = drive("agui.mjs", "twice").result()

    live = [message["id"] for message in seen["first"]["messages"] if message["role"] == "user"]
    late = seen["late"]["messages"]
    assert [message["id"] for message in late if message["role"] == "user"] == live
    check_story(late[-6:])
    assert late[1]["content"] == "".join(TEXT)
    assert [message["role"] for message in late[:4]] == ["user", "assistant", "tool", "tool"]


def test_a_stop_from_another_client_is_no_error(drive: Drive) -> None:
    seen = drive("agui.mjs", "stop").result()

    assert (seen["answer"], seen["errors"]) == (202, [])
    assert seen["ends"][0]["result"] == {"status": "cancelled"}
    assert seen["messages"][1]["content"] == "On and on"
    assert [message["role"] for message in seen["messages"]] == ["user", "assistant", "tool"]


def test_a_failure_is_the_agents_error_and_tells_no_secret(drive: Drive) -> None:
    seen = drive("agui.mjs", "fail").result()

    assert len(seen["errors"]) >= 1
    assert "secret" not in json.dumps(seen)
    assert seen["messages"][-1]["content"] == "So far so good"


def test_a_killed_worker_is_the_agents_error_with_the_text_so_far(
    drive: Drive, site: Site, tmp_path: Path
) -> None:
    worker = site.work("doomed")
    driver = drive("agui.mjs", "killed")
    until((tmp_path / "speaking").exists, "the agent to speak")
    worker.kill()

    seen = driver.result()

    assert seen["errors"]
    assert seen["ends"] == []
    assert seen["messages"][-1]["content"] == "On and on"


def test_a_question_is_an_interrupt_and_resume_answers_it(drive: Drive) -> None:
    seen = drive("agui.mjs", "asked").result()

    for viewer in (seen["first"], seen["late"]):
        (end,) = viewer["ends"]
        assert end["outcome"] == {"type": "interrupt", "interrupts": [seen["refund"]]}
        assert [message["content"] for message in viewer["messages"]] == ["Hello", "May I? "]
    assert seen["refund"]["metadata"] == {"key": "refund", "question": {"approve": "refund"}}
    assert (seen["name"]["message"], seen["name"]["reason"]) == ("Whose is it?", "input_required")
    assert datetime.fromisoformat(seen["name"]["expiresAt"]) > datetime.now(UTC)
    said = [message["content"] for message in seen["last"]["messages"]]
    assert "".join(said) == "HelloMay I? You said {'approved': True}. It is of Ann."
    outcomes = [end["outcome"]["type"] for end in seen["last"]["ends"]]
    assert outcomes == ["interrupt", "interrupt", "success", "success"]
    assert (seen["last"]["errors"], seen["first"]["customs"]) == ([], [])
    codes = [error[:8] for error in seen["refused"] if error.startswith("HTTP")]
    assert codes == ["HTTP 409", "HTTP 409", "HTTP 404"]


def test_a_question_that_is_given_up_stops_its_run_and_the_thread_goes_on(drive: Drive) -> None:
    seen = drive("agui.mjs", "givenUp").result()

    assert seen["errors"] == []
    assert [end["outcome"]["type"] for end in seen["ends"]] == [
        "interrupt",
        "cancelled",
        "interrupt",
    ]


def test_a_refusal_says_why(drive: Drive) -> None:
    seen = drive("agui.mjs", "refused").result()

    assert "nobody" in seen["errors"][0]
    assert "HTTP 400" in seen["errors"][0]
