"""OpenAI's own SDK for Node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from .conftest import SERVERS, Driver, Site
from .proxy import CuttingProxy
from .story import TEXT

pytestmark = pytest.mark.node
Drive = Callable[..., Driver]


@pytest.mark.parametrize("kind", SERVERS)
@pytest.mark.parametrize("cut_after", [700, 5_000])
def test_a_stream_that_was_cut_goes_on_where_it_was(
    drive: Drive, site: Site, kind: str, cut_after: int
) -> None:
    proxy = CuttingProxy(site.ports[kind], cut_after)
    told = drive("openai.mjs", "cut", kind, cut=f"127.0.0.1:{proxy.port}").result()
    proxy.close()

    assert proxy.was_cut
    assert told["failure"]
    assert [*told["seen"], *told["rest"]] == told["whole"]
    final = told["whole"][-1]
    assert final["type"] == "response.completed"
    said = [item for item in final["response"]["output"] if item["type"] == "message"]
    assert "".join(item["content"][0]["text"] for item in said) == TEXT


def test_the_helper_streams_and_comes_back(drive: Drive) -> None:
    told = drive("openai.mjs", "helper").result()

    assert (told["text"], told["last"]) == (TEXT, True)
    assert told["rest"] == [number for number in told["events"] if number > told["middle"]]


def test_a_stop_ends_the_stream_as_cancelled(drive: Drive) -> None:
    told = drive("openai.mjs", "stop").result()

    assert (told["type"], told["response"]["status"]) == ("response.incomplete", "cancelled")
    assert told["response"]["output"][0]["content"][0]["text"] == "On and on"


def test_failures_and_refusals_are_the_sdks_own(drive: Drive) -> None:
    told: dict[str, Any] = drive("openai.mjs", "errors").result()

    assert told["failed"]["status"] == "failed"
    assert told["failed"]["output_text"] == "So far so good"
    assert told["failed"]["error"]["code"] == "server_error"
    assert told["refusal"] == ["BadRequestError", 400, "model_not_found"]
