"""The browser's own EventSource and WebSocket, dropped at every event of a run."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import BrowserContext, Page

pytestmark = [pytest.mark.chromium, pytest.mark.timeout(300)]

START = """async (body) => {
  const csrf = document.cookie.match(/csrftoken=([^;]+)/)[1];
  const headers = {"Content-Type": "application/json", "X-CSRFToken": csrf};
  const answer = await fetch("/api/runs", {method: "POST", headers, body: JSON.stringify(body)});
  return (await answer.json()).run_id;
}"""

# Takes one event from each stream, closes it, and asks for what comes after that event.
ONE_EVENT_A_STREAM = """async (run) => {
  const events = [];
  while (events.at(-1)?.type !== "complete") {
    const source = new EventSource(`/api/runs/${run}/events?from=${events.at(-1)?.seq ?? 0}`);
    events.push(await new Promise((resolve) => {
      source.onmessage = ({data}) => { source.close(); resolve(JSON.parse(data)); };
    }));
  }
  return events;
}"""

ONE_EVENT_A_SOCKET = """async (run) => {
  const events = [];
  while (events.at(-1)?.type !== "complete") {
    const from = events.at(-1)?.seq ?? 0;
    const socket = new WebSocket(`ws://${location.host}/ws/runs/${run}?from=${from}`);
    events.push(await new Promise((resolve, reject) => {
      socket.onclose = ({code}) => reject(new Error(`closed with ${code} after event ${from}`));
      socket.onmessage = ({data}) => {
        const event = JSON.parse(data);
        if (event.type === "keepalive") return;
        socket.onclose = null;
        socket.close();
        resolve(event);
      };
    }));
  }
  return events;
}"""

# Never closes anything: it is the network that cuts, and the browser that comes back.
ONE_EVENTSOURCE = """(run) => new Promise((resolve) => {
  const events = [];
  let opened = 0;
  const source = new EventSource(`/api/runs/${run}/events?from=0`);
  source.onopen = () => { opened += 1; };
  source.onmessage = ({data}) => events.push(JSON.parse(data));
  source.onerror = () => {
    if (source.readyState === EventSource.CLOSED) resolve({events, opened});
  };
})"""


@pytest.fixture
def page(context: BrowserContext) -> Page:
    page = context.new_page()
    page.goto("/")
    return page


def journal(page: Page, run: str) -> list[dict[str, Any]]:
    answer = page.request.get(
        f"/api/runs/{run}/events?from=0&limit=1000", headers={"Accept": "application/json"}
    ).json()
    assert answer["done"]
    events: list[dict[str, Any]] = answer["events"]
    return events


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join(event["delta"] for event in events if event["type"] == "content_delta")


@pytest.mark.parametrize("drop", [ONE_EVENT_A_STREAM, ONE_EVENT_A_SOCKET], ids=["sse", "websocket"])
@pytest.mark.parametrize(
    ("agent", "content", "text"),
    [
        ("slow", "4 seconds", "1 2 3 4 "),
        ("assistant", "What is 6 * 7?", "6 * 7 = 42"),
        ("echo", 'a\u2028b\r\n\u0000\U0001f600 \\ " data: x\n\nid: 9'.replace("\u0000", ""), None),
    ],
    ids=["deltas", "tools", "odd characters"],
)
def test_a_stream_dropped_at_every_event_gives_each_event_once(
    page: Page, drop: str, agent: str, content: str, text: str | None
) -> None:
    run = page.evaluate(START, {"content": content, "agent": agent})

    events = page.evaluate(drop, run)

    assert events == journal(page, run)
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert text_of(events) == (content if text is None else text)


def test_the_browser_comes_back_by_itself_after_every_cut(context: BrowserContext) -> None:
    page = context.new_page()
    page.goto("/")
    address = urlsplit(page.url)
    with cutting_proxy(address.port or 80) as (port, cuts):
        page.goto(f"http://127.0.0.1:{port}/")
        run = page.evaluate(START, {"content": "once", "agent": "echo"})

        seen = page.evaluate(ONE_EVENTSOURCE, run)

        assert seen["events"] == journal(page, run)
        # A cut can overtake the event that it follows: then that event comes again.
        assert len(cuts) >= len(seen["events"])
        assert seen["opened"] >= len(seen["events"])  # and a 204 at last, which ends it


@contextlib.contextmanager
def cutting_proxy(server_port: int) -> Iterator[tuple[int, list[bytes]]]:
    """A way to the server on which every event stream breaks after one event."""
    cuts: list[bytes] = []
    sockets: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def run(target: Callable[..., None], *arguments: Any) -> None:
        threads.append(threading.Thread(target=target, args=arguments, daemon=True))
        threads[-1].start()

    def accept(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.create_connection(("127.0.0.1", server_port))
                sockets.extend([client, server])
                run(pump, client, server, [])
                run(pump, server, client, cuts)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        run(accept, listener)
        yield listener.getsockname()[1], cuts
        listener.shutdown(socket.SHUT_RDWR)
        threads[0].join(10)
    for each in sockets:
        hang_up(each)
    for thread in threads:
        thread.join(10)
    for each in sockets:
        each.close()


def pump(source: socket.socket, target: socket.socket, cuts: list[bytes]) -> None:
    """Hand everything on; after the first event of a stream, hang up."""
    seen = b""
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            seen = seen + data if b"text/event-stream" in seen else data
            if is_stream_with_event(seen):
                cuts.append(seen)
                end = seen.index(b"\n\n", seen.index(b"id: ")) + 2
                target.sendall(data[: len(data) - (len(seen) - end)])
                break
            target.sendall(data)
    hang_up(source)
    hang_up(target)


def is_stream_with_event(seen: bytes) -> bool:
    head, _, body = seen.partition(b"\r\n\r\n")
    is_stream = b"content-type: text/event-stream" in head.lower()
    return is_stream and b"\n\n" in body[body.find(b"id: ") :] and b"id: " in body


def hang_up(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
