"""LangGraph's own SDK for Node."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .conftest import SERVERS, Driver, Site
from .proxy import CuttingProxy
from .story import TEXT

pytestmark = pytest.mark.node
Drive = Callable[..., Driver]


@pytest.mark.parametrize("kind", SERVERS)
@pytest.mark.parametrize("cut_after", [900, 4_500])
def test_a_stream_that_was_cut_goes_on_where_it_was(
    drive: Drive, site: Site, kind: str, cut_after: int
) -> None:
    proxy = CuttingProxy(site.ports[kind], cut_after)
    told = drive("langgraph.mjs", "cut", kind, cut=f"127.0.0.1:{proxy.port}").result()
    proxy.close()

    assert proxy.was_cut
    assert told["parts"] == told["whole"]
    chunks = [part["data"][0] for part in told["parts"] if part["event"] == "messages"]
    said = [chunk["content"] for chunk in chunks if chunk["type"] == "AIMessageChunk"]
    assert "".join(said) == TEXT
    assert told["values"]["messages"][1]["content"] == TEXT


def test_a_stop_ends_the_stream(drive: Drive) -> None:
    told = drive("langgraph.mjs", "stop").result()

    assert (told["last"], told["run"]["status"]) == ("end", "interrupted")


def test_failures_and_refusals_are_the_sdks_own(drive: Drive) -> None:
    told = drive("langgraph.mjs", "errors").result()

    assert told["events"] == ["values", "error", "end"]
    assert told["error"]["error"] == "agent_error"
    assert "agent_error" in told["waited"]
    assert told["status"] == 409
