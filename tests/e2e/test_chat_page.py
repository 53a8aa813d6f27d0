"""The page keeps every word, whatever happens to it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import BrowserContext, Route, expect

from .chat import COUNT, COUNTED, Chat, essay

pytestmark = [pytest.mark.chromium, pytest.mark.timeout(300)]

EARLY = "3 "
OpenChat = Callable[[], Chat]


def assert_whole(chat: Chat, text: str = COUNTED) -> None:
    chat.wait_for_text(text.split()[-1])
    chat.wait_until_ready()
    assert chat.text() == text
    assert chat.messages()[-1]["content"] == text
    assert chat.runs()[-1]["status"] == "completed"


def test_a_reload_in_the_middle_of_a_stream_loses_and_doubles_nothing(chat: Chat) -> None:
    chat.count()
    chat.wait_for_text(EARLY)

    chat.page.reload()
    chat.wait_for_text(EARLY)
    chat.page.reload()

    expect(chat.replies).to_have_count(1)
    assert_whole(chat)


def test_two_tabs_show_the_same_text_while_it_comes(open_chat: OpenChat) -> None:
    first, second = open_chat(), open_chat()
    first.count()
    first.wait_for_text("1")

    second.page.goto(first.page.url)
    second.wait_for_text(EARLY)

    assert_whole(first)
    assert_whole(second)


def test_a_turn_sent_in_one_tab_shows_up_in_the_other(open_chat: OpenChat) -> None:
    first, second = open_chat(), open_chat()
    first.ask("What is 6 * 7?")
    first.wait_for_text("6 * 7 = 42")
    second.page.goto(first.page.url)
    second.wait_for_text("6 * 7 = 42")

    first.ask("What is 8 * 8?")

    second.wait_for_text("8 * 8 = 64")
    expect(second.replies).to_have_count(2)


def test_a_tab_closed_and_opened_again_shows_the_text_from_its_start(open_chat: OpenChat) -> None:
    chat = open_chat()
    chat.count()
    chat.wait_for_text("1")
    address = chat.page.url
    chat.page.close()

    again = open_chat()
    again.page.goto(address)

    assert_whole(again)


def test_back_and_forward_keep_each_conversation_whole(chat: Chat) -> None:
    chat.count()
    chat.wait_for_text(EARLY)
    chat.page.get_by_role("link", name="New conversation").click()
    chat.ask("What is 6 * 7?")
    chat.wait_for_text("6 * 7 = 42")

    chat.page.go_back()
    chat.page.go_back()

    assert_whole(chat)
    chat.page.go_forward()
    chat.page.go_forward()
    assert_whole(chat, "6 * 7 = 42")


def test_a_machine_that_loses_its_network_goes_on_where_it_was(
    chat: Chat, context: BrowserContext
) -> None:
    chat.may_lose_network = True
    chat.count()
    chat.wait_for_text(EARLY)

    context.set_offline(True)
    expect(chat.light).to_contain_text("Offline")
    seen = chat.text()
    context.set_offline(False)

    expect(chat.light).to_have_attribute("data-state", "live")
    assert seen != COUNTED
    assert COUNTED.startswith(seen)
    assert_whole(chat)


def test_a_stream_that_is_cut_goes_on_after_its_last_event(chat: Chat) -> None:
    chat.count()
    chat.wait_for_text(EARLY)

    chat.press("Cut this page's stream")

    expect(chat.light).to_contain_text("Stream cut")
    expect(chat.happened).to_contain_text("nothing is missing")
    assert_whole(chat)


def test_a_killed_worker_leaves_the_text_so_far_and_a_retry(chat: Chat) -> None:
    chat.count()
    chat.wait_for_text(EARLY)

    chat.press("Kill the worker")

    expect(chat.ending).to_contain_text("The worker that ran this was lost")
    kept = chat.messages()[-1]
    assert kept["status"] == "partial"
    assert chat.text() == kept["content"]
    assert COUNTED.startswith(kept["content"])
    chat.press("Retry")
    chat.wait_for_text("8")
    assert_whole(chat)
    assert [message["role"] for message in chat.messages()] == ["user", "assistant"]
    assert [run["attempt"] for run in chat.runs()] == [1, 2]


def test_a_worker_that_was_frozen_adds_nothing_when_it_wakes(chat: Chat) -> None:
    chat.count()
    chat.wait_for_text(EARLY)

    chat.press("Freeze the worker")
    expect(chat.ending).to_contain_text("was lost")
    kept = chat.text()
    chat.ask("What is 6 * 7?")  # the other worker, or this one awake: the conversation goes on
    chat.wait_for_text("6 * 7 = 42")

    assert chat.text(0) == kept == chat.messages()[1]["content"]
    assert [run["status"] for run in chat.runs()] == ["failed", "completed"]


def test_a_crash_of_the_database_costs_the_answer_nothing(chat: Chat) -> None:
    chat.may_lose_network = True
    chat.count()
    chat.wait_for_text(EARLY)

    chat.press("Crash PostgreSQL")

    expect(chat.happened).to_contain_text("was back after")
    assert_whole(chat)
    chat.ask("What is 6 * 7?")
    chat.wait_for_text("6 * 7 = 42")


def test_a_killed_web_server_costs_the_answer_nothing(chat: Chat) -> None:
    chat.may_lose_network = True
    chat.count()
    chat.wait_for_text(EARLY)

    chat.press("Kill the web server")

    expect(chat.light).to_have_attribute("data-state", "rejoining")
    assert_whole(chat)
    expect(chat.happened).to_contain_text("nothing is missing")


def test_a_stop_hands_the_turns_that_wait_back_as_drafts(chat: Chat) -> None:
    chat.count()
    chat.wait_for_text("1")
    chat.ask("What is 6 * 7?")
    chat.ask("What is 8 * 8?")
    expect(chat.page.locator(".waiting:visible .place")).to_have_text(
        ["Waits, number 1 in line", "Waits, number 2 in line"]
    )

    chat.press("Stop")

    expect(chat.ending).to_contain_text("Stopped")
    expect(chat.box).to_have_value("What is 6 * 7?")
    expect(chat.drafts).to_have_text(["What is 8 * 8?"])
    expect(chat.questions).to_have_count(1)
    assert COUNTED.startswith(chat.text())
    chat.box.press("Enter")
    chat.wait_for_text("6 * 7 = 42")
    chat.press("Take up")
    chat.box.press("Enter")
    chat.wait_for_text("8 * 8 = 64")
    chat.wait_until_ready()
    said = [message["content"] for message in chat.messages() if message["role"] == "user"]
    assert said == [COUNT, "What is 6 * 7?", "What is 8 * 8?"]
    expect(chat.drafts).to_have_count(0)


def test_a_turn_that_waits_can_be_edited_and_cancelled(chat: Chat) -> None:
    chat.count()
    chat.wait_for_text("1")
    chat.ask("What is 6 * 6?")
    chat.ask("What is 8 * 8?")

    chat.questions.nth(1).get_by_role("button", name="Edit").click()
    expect(chat.box).to_have_value("What is 6 * 6?")
    expect(chat.questions).to_have_count(2)
    chat.box.fill("What is 6 * 7?")
    chat.box.press("Enter")
    expect(chat.questions).to_have_count(3)
    expect(chat.questions.nth(2)).to_contain_text("What is 6 * 7?")  # at the end of the line
    chat.questions.nth(1).get_by_role("button", name="Cancel").click()

    expect(chat.drafts).to_have_text(["What is 8 * 8?"])
    expect(chat.questions).to_have_count(2)
    chat.wait_for_text("6 * 7 = 42")


def test_a_run_that_failed_can_be_tried_again(chat: Chat) -> None:
    chat.ask("Go on", agent="failing")
    expect(chat.ending).to_contain_text("The agent broke off with an error")
    assert chat.text() == "This goes well until "

    chat.press("Retry")
    chat.page.wait_for_function(
        """async (id) => (await (await fetch(`/api/runs?conversation=${id}`)).json()).results
             .filter((run) => run.status === "failed").length === 2""",
        arg=chat.conversation,
    )
    chat.wait_until_ready()

    expect(chat.replies).to_have_count(1)
    expect(chat.ending).to_contain_text("The agent broke off with an error")
    assert [run["attempt"] for run in chat.runs()] == [1, 2]


def test_a_reply_of_5000_words_is_shown_exactly(chat: Chat) -> None:
    chat.ask("5000 words", agent="essay")
    chat.wait_for_text("word5000")

    assert_whole(chat, essay(5000))
    chat.page.reload()
    chat.wait_for_text("word5000")
    assert_whole(chat, essay(5000))


def test_reasoning_tools_and_progress_are_shown_as_they_happen(chat: Chat) -> None:
    chat.ask("Run the slow job")

    reply = chat.replies.last
    expect(reply.locator(".reasoning")).to_contain_text("This takes a while")
    expect(reply.locator(".step")).to_contain_text("slow_job runs")
    expect(reply.locator("progress")).to_have_attribute("value", "25")
    expect(reply.locator(".step .state")).to_have_text("done")
    chat.wait_for_text("The job is done")
    chat.wait_until_ready()
    chat.page.reload()
    chat.page.locator(".step summary").click()
    expect(chat.page.locator(".step .result")).to_contain_text('"steps_done": 20')


def test_a_message_whose_answer_was_lost_is_sent_once(chat: Chat) -> None:
    chat.may_lose_network = True
    chat.ask("What is 6 * 7?")
    chat.wait_until_ready()

    def lose_the_answer(route: Route) -> None:
        route.fetch()
        route.abort()

    chat.page.route("**/api/runs", lose_the_answer, times=1)
    chat.box.fill("What is 8 * 8?")
    chat.box.press("Enter")
    expect(chat.page.get_by_role("alert")).to_contain_text("can't be reached")
    expect(chat.box).to_have_value("What is 8 * 8?")
    chat.box.press("Enter")

    chat.wait_for_text("8 * 8 = 64")
    chat.wait_until_ready()
    assert len(chat.runs()) == 2


def test_a_refused_message_stays_in_the_box_with_the_reason(chat: Chat) -> None:
    chat.may_lose_network = False
    chat.page.on("console", lambda _: chat.complaints.clear())  # a 400 is logged by the browser
    chat.box.evaluate("(box) => { box.value = 'x'.repeat(100001); }")
    chat.press("Send")

    expect(chat.page.get_by_role("alert")).to_contain_text("100000")
    assert len(chat.box.input_value()) == 100001


def test_a_question_waits_for_its_answer_on_every_page(open_chat: OpenChat) -> None:
    first, second = open_chat(), open_chat()
    first.ask("Order a pizza, but ask me first")
    expect(first.page.get_by_role("form", name="Question")).to_contain_text("Shall I order")
    assert first.runs()[-1]["status"] == "waiting"
    first.page.reload()
    second.page.goto(first.page.url)

    second.press("Yes")

    first.wait_for_text("The pizza is ordered, once")
    expect(first.page.locator(".question:visible")).to_have_count(0)
    first.wait_until_ready()
    assert first.text() == first.messages()[-1]["content"]
