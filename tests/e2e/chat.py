"""The chat page, in the words of somebody who uses it."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qs, urlsplit

from playwright.sync_api import Page, expect

COUNT = "Count to 8"
COUNTED = "".join(f"{second} " for second in range(1, 9))
NETWORK = re.compile(
    r"Failed to load resource: (net::ERR_|the server responded with a status of 50)"
)

expect.set_options(timeout=40_000)


def essay(words: int) -> str:
    """What the agent `essay` writes."""
    return "".join(f"word{n}{' ' if n % 12 else chr(10)}" for n in range(1, words + 1))


def sign_in(page: Page) -> None:
    page.goto("/")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_label("Message", exact=True)).to_be_visible()


class Chat:
    """One tab."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.may_lose_network = False
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", lambda message: self._hear(message.type, message.text))
        page.goto("/")

    def _hear(self, kind: str, text: str) -> None:
        # The browser itself logs what it could not load; a page can't help it.
        if kind in {"error", "warning"} and not (self.may_lose_network and NETWORK.match(text)):
            self.complaints.append(text)

    # --- What a person does ---

    def count(self) -> None:
        """Ask for eight numbers, one in a second."""
        self.ask(COUNT, agent="slow")

    def ask(self, content: str, *, agent: str = "assistant") -> None:
        self.page.get_by_label("Agent", exact=True).select_option(agent)
        before = self.questions.count()
        self.box.fill(content)
        self.page.locator("#send").click()  # on a phone, Enter makes a new line
        expect(self.questions).to_have_count(before + 1)

    def press(self, name: str) -> None:
        self.page.get_by_role("button", name=name).first.click()

    # --- What a person sees ---

    @property
    def box(self) -> Any:
        return self.page.get_by_label("Message", exact=True)

    @property
    def questions(self) -> Any:
        return self.page.locator("li.user")

    @property
    def replies(self) -> Any:
        return self.page.locator("li.reply")

    @property
    def drafts(self) -> Any:
        return self.page.locator("#drafts li:visible span")

    @property
    def ending(self) -> Any:
        return self.page.locator(".ending:visible").last

    @property
    def light(self) -> Any:
        return self.page.locator("#light")

    @property
    def happened(self) -> Any:
        return self.page.locator("#happened")

    def text(self, reply: int = -1) -> str:
        return str(self.replies.nth(reply).locator(".text").text_content())

    def wait_for_text(self, words: str) -> None:
        expect(self.replies.last.locator(".text")).to_contain_text(words)

    def wait_until_ready(self) -> None:
        expect(self.page.locator("#stop")).to_be_hidden()
        expect(self.light).to_have_attribute("data-state", "ready")

    # --- What the API says ---

    @property
    def conversation(self) -> str:
        return parse_qs(urlsplit(self.page.url).query)["conversation"][0]

    def messages(self) -> list[dict[str, Any]]:
        answer = self.page.request.get(f"/api/conversations/{self.conversation}/messages")
        results: list[dict[str, Any]] = answer.json()["results"]
        return results

    def runs(self) -> list[dict[str, Any]]:
        """The runs of this conversation, oldest first."""
        answer = self.page.request.get(f"/api/runs?conversation={self.conversation}")
        results: list[dict[str, Any]] = answer.json()["results"]
        return results[::-1]
