"""The page for eyes, keyboards and screen readers of every kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, StorageState, expect

from .chat import COUNT, Chat

pytestmark = [pytest.mark.chromium, pytest.mark.timeout(300)]


@pytest.fixture(params=["light", "dark", "phone"])
def context(
    browser: Browser, site: str, signed_in: StorageState, request: pytest.FixtureRequest
) -> Iterator[BrowserContext]:
    phone = request.param == "phone"
    with browser.new_context(
        base_url=site,
        storage_state=signed_in,
        color_scheme="dark" if request.param == "dark" else "light",
        viewport={"width": 360, "height": 740} if phone else {"width": 1360, "height": 860},
        has_touch=phone,
        reduced_motion="reduce",
    ) as context:
        context.set_default_timeout(40_000)
        yield context


def violations(page: Page) -> list[str]:
    found = Axe().run(page).response["violations"]
    return [f"{each['id']}: {[node['html'][:200] for node in each['nodes']]}" for each in found]


def test_axe_finds_nothing_on_the_way_in(browser: Browser, site: str) -> None:
    with browser.new_context(base_url=site) as context:
        page = context.new_page()
        page.goto("/login/")
        assert violations(page) == []
        page.get_by_label("Password").fill("wrong")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("alert")).to_be_visible()
        assert violations(page) == []


def test_axe_finds_nothing_in_any_state_of_the_page(chat: Chat) -> None:
    assert violations(chat.page) == []

    chat.ask("What is 6 * 7?")
    chat.wait_for_text("6 * 7 = 42")
    for summary in chat.page.locator("summary").all():
        if summary.is_visible() and summary.locator("xpath=..").get_attribute("open") is None:
            summary.click()
    assert violations(chat.page) == []

    chat.count()
    chat.wait_for_text("1")
    chat.ask("What is 8 * 8?")
    if not chat.page.locator("[data-fault=cut]").is_visible():
        chat.page.get_by_text("Break it", exact=True).click()
    chat.press("Cut this page's stream")
    expect(chat.light).to_have_attribute("data-state", "rejoining")
    assert violations(chat.page) == []

    chat.press("Stop")
    expect(chat.ending).to_contain_text("Stopped")
    assert violations(chat.page) == []


def test_nothing_is_wider_than_the_screen(chat: Chat) -> None:
    chat.ask("x" * 400, agent="echo")
    chat.wait_for_text("xxx")

    width = chat.page.evaluate("document.documentElement.scrollWidth - innerWidth")

    assert width <= 0


def test_the_keyboard_alone_is_enough(open_chat: Callable[[], Chat]) -> None:
    chat = open_chat()
    expect(chat.box).to_be_focused()
    chat.page.keyboard.type(COUNT)
    chat.page.keyboard.press("Tab")
    chat.page.keyboard.type("slow")
    chat.page.keyboard.press("Tab")
    expect(chat.page.get_by_role("button", name="Send", exact=True)).to_be_focused()
    chat.page.keyboard.press("Enter")
    chat.wait_for_text("1")
    expect(chat.box).to_be_focused()
    chat.page.keyboard.press("Tab")
    chat.page.keyboard.press("Tab")
    expect(chat.page.get_by_role("button", name="Stop", exact=True)).to_be_focused()
    chat.page.keyboard.press("Space")

    expect(chat.ending).to_contain_text("Stopped")
    expect(chat.page.locator("#announcer")).to_contain_text("Stopped")
