"""A browser, and the demo that it looks at.

Both live for one module: the browser's driver runs an event loop in this thread, which other tests
would find there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, StorageState, sync_playwright

from tests.conftest import find_program

from .chat import Chat, sign_in
from .demo import running_demo

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with running_demo() as address:
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_program("chromium"), args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def signed_in(browser: Browser, site: str) -> StorageState:
    """The cookies of somebody who is signed in."""
    with browser.new_context(base_url=site) as context:
        sign_in(context.new_page())
        return context.storage_state()


@pytest.fixture
def context(browser: Browser, site: str, signed_in: StorageState) -> Iterator[BrowserContext]:
    """A browser of somebody who is signed in; tabs of one context share their cookies."""
    with browser.new_context(base_url=site, storage_state=signed_in) as context:
        context.set_default_timeout(40_000)
        yield context


@pytest.fixture
def open_chat(context: BrowserContext) -> Iterator[Callable[[], Chat]]:
    """Open a tab with the chat; what its console says must be nothing when the test ends."""
    chats: list[Chat] = []

    def open_chat() -> Chat:
        chats.append(Chat(context.new_page()))
        return chats[-1]

    yield open_chat
    assert [complaint for chat in chats for complaint in chat.complaints] == []


@pytest.fixture
def chat(open_chat: Callable[[], Chat]) -> Chat:
    return open_chat()
