"""Take the README's pictures of a demo that runs: `python docs/screenshots.py ADDRESS`."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from playwright.sync_api import Browser, Page, expect, sync_playwright

FOLDER = Path(__file__).resolve().parent / "pictures"
DESKTOP = {"width": 1360, "height": 860}
PHONE = {"width": 390, "height": 844}
FLAGS = ["--disable-gpu", "--disable-background-networking", "--no-first-run"]

expect.set_options(timeout=60_000)


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    flags = [*FLAGS, "--no-sandbox"] if os.geteuid() == 0 else FLAGS
    with sync_playwright() as playwright:
        chromium = shutil.which("chromium") or "/usr/bin/chromium"
        browser = playwright.chromium.launch(executable_path=chromium, args=flags)
        for scheme in ("light", "dark"):
            chat_survives(browser, scheme)
        chat_on_a_phone(browser)
        browser.close()


def chat_survives(browser: Browser, scheme: str) -> None:
    """A conversation with tools, a queued turn, and a worker that was killed."""
    page = open_chat(browser, DESKTOP, scheme)
    ask(page, "What is (6 + 8) * 3?")
    expect(page.locator(".reply .text")).to_have_text("(6 + 8) * 3 = 42")
    ask(page, "Tell me everything you know, slowly")
    expect(page.locator(".reply .text").last).to_contain_text("A worker claims a run")
    page.get_by_role("button", name="Kill the worker").click()
    expect(page.locator(".ending:visible")).to_contain_text("was lost")
    page.get_by_role("button", name="Retry").click()
    ask(page, "What is a lease?")
    expect(page.locator(".reply .text").last).to_contain_text("A worker claims a run")
    page.wait_for_timeout(1500)  # for the row, which is read every second
    page.screenshot(path=FOLDER / f"chat-{scheme}.png")
    page.context.close()


def chat_on_a_phone(browser: Browser) -> None:
    page = open_chat(browser, PHONE, "light")
    ask(page, "What is a lease?")
    expect(page.locator(".reply .text")).to_contain_text("text so far is kept.")
    page.screenshot(path=FOLDER / "chat-phone.png")
    page.context.close()


def open_chat(browser: Browser, size: dict[str, int], scheme: str) -> Page:
    page = browser.new_context(
        base_url=sys.argv[1],
        viewport=size,  # type: ignore[arg-type]
        color_scheme=scheme,  # type: ignore[arg-type]
    ).new_page()
    page.goto("/")
    page.get_by_role("button", name="Sign in").click()
    return page


def ask(page: Page, content: str) -> None:
    before = page.locator("li.user").count()
    page.get_by_label("Message", exact=True).fill(content)
    page.get_by_role("button", name="Send").or_(page.get_by_role("button", name="Queue")).click()
    expect(page.locator("li.user")).to_have_count(before + 1)


if __name__ == "__main__":
    main()
