"""The AI SDK's own chat, over both of its transports."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
CUTS = {False: (1, 400, 700, 1000, 1400, 1800), True: (350, 500, 700, 900)}
"""After how many bytes; the story says more than these before its gate. A socket's frames are
packed, and one that is cut in its handshake never sent the message.
"""


@pytest.fixture(params=["http", "socket"])
def transport(request: Any) -> dict[str, Any]:
    return {"socket": request.param == "socket"}


@pytest.fixture(params=["daphne", "uvicorn"])
def kind(request: Any) -> str:
    return request.param  # type: ignore[no-any-return]


def check_story(seen: dict[str, Any]) -> None:
    """All of the story, once and in order."""
    assert (seen["status"], seen["errors"]) == ("ready", [])
    assert seen["roles"] == ["user", "assistant"]
    check_parts(seen["parts"])
    assert seen["metadata"]["usage"] == {"input_tokens": 11, "output_tokens": 23}


def check_parts(parts: list[dict[str, Any]]) -> None:
    assert [part["type"] for part in parts] == [
        *("step-start", "reasoning", "text", "dynamic-tool", "dynamic-tool", "text"),
        "data-progress",
    ]
    said = [part for part in parts if part["type"] == "text"]
    assert [part["text"] for part in said] == TEXT
    assert {part["state"] for part in said} == {"done"}
    calls = [part for part in parts if part["type"] == "dynamic-tool"]
    assert [(call["toolName"], call["state"], call["input"]) for call in calls] == [
        ("search", "output-available", {"q": "漢字"}),
        ("add", "output-available", {"a": 1}),
    ]
    assert [call["output"] for call in calls] == [{"found": ["\u2028", None, 1.5]}, 2]


def test_a_whole_run(drive: Drive, kind: str, transport: dict[str, Any]) -> None:
    check_story(drive("aisdk.mjs", "whole", kind, **transport).result())


@pytest.fixture
def proxies(site: Site, kind: str, transport: dict[str, Any]) -> Iterator[list[CuttingProxy]]:
    cuts = CUTS[transport["socket"]]
    made = [CuttingProxy(site.ports[kind], cut_after) for cut_after in cuts]
    yield made
    for proxy in made:
        proxy.close()


def test_cut_anywhere_and_resumed_nothing_is_missing_or_doubled(
    drive: Drive, kind: str, transport: dict[str, Any], proxies: list[CuttingProxy]
) -> None:
    ports = [proxy.port for proxy in proxies]

    seen = drive("aisdk.mjs", "cut", kind, ports=ports, **transport).result()

    assert all(proxy.was_cut for proxy in proxies)
    for one in seen:
        assert one["first"]["status"] == "error"
        assert one["last"]["status"] == "ready"
        check_parts(one["last"]["parts"])


def test_viewers_come_and_go_and_the_run_goes_on(drive: Drive, transport: dict[str, Any]) -> None:
    seen = drive("aisdk.mjs", "viewers", **transport).result()

    for viewer in seen["all"]:
        check_story(viewer)
    assert seen["all"][0]["id"] == seen["all"][1]["id"] == seen["stopped"]["id"]
    assert (seen["idle"]["status"], seen["idle"]["roles"]) == ("ready", [])


def test_a_stop_from_another_client(drive: Drive, transport: dict[str, Any]) -> None:
    seen = drive("aisdk.mjs", "stop", **transport).result()

    assert seen["answer"] == 202
    assert (seen["status"], seen["errors"]) == ("ready", [])
    _, text, call = seen["parts"]
    assert (text["text"], text["state"]) == ("On and on", "done")
    assert (call["toolName"], call["state"]) == ("wait", "output-error")


def test_a_failure_is_the_chats_error_and_tells_no_secret(
    drive: Drive, transport: dict[str, Any]
) -> None:
    seen = drive("aisdk.mjs", "fail", **transport).result()

    assert seen["status"] == "error"
    assert len(seen["errors"]) == 1
    assert "secret" not in seen["errors"][0]
    assert [part["text"] for part in seen["parts"] if part["type"] == "text"] == ["So far so good"]


def test_a_failed_reply_is_regenerated_as_another_message(drive: Drive) -> None:
    seen = drive("aisdk.mjs", "regenerate").result()

    assert seen["first"]["id"] != seen["last"]["id"]
    assert seen["last"]["roles"] == ["user", "assistant"]
    assert len(seen["last"]["errors"]) == 2


def test_a_killed_worker_is_the_chats_error_with_the_text_so_far(
    drive: Drive, site: Site, tmp_path: Path, transport: dict[str, Any]
) -> None:
    worker = site.work("doomed")
    driver = drive("aisdk.mjs", "killed", **transport)
    until((tmp_path / "speaking").exists, "the agent to speak")
    worker.kill()

    seen = driver.result()

    assert (seen["status"], len(seen["errors"])) == ("error", 1)
    assert [part["text"] for part in seen["parts"] if part["type"] == "text"] == ["On and on"]


def test_a_refusal_is_the_chats_error_word_by_word(drive: Drive, transport: dict[str, Any]) -> None:
    seen = drive("aisdk.mjs", "refused", **transport).result()

    assert seen["status"] == "error"
    assert "nobody" in seen["errors"][0]
    assert not seen["errors"][0].startswith("{")
