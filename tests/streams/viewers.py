"""Viewers, as strict as the strictest client about what is on the wire."""

from __future__ import annotations

import contextlib
import json
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.support import PATIENCE_SECONDS

from .servers import WebServer

Event = dict[str, Any]
CUT = (httpx.RemoteProtocolError, httpx.ReadError)
"""What a client sees of a stream that did not come to its end."""


@dataclass
class Seen:
    """What a viewer has seen."""

    events: list[Event] = field(default_factory=list)
    comments: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(e["delta"] for e in self.events if e["type"] == "content_delta")

    @property
    def seqs(self) -> list[int]:
        return [event["seq"] for event in self.events]

    @property
    def cursor(self) -> int:
        return self.seqs[-1] if self.events else 0

    @property
    def ended(self) -> bool:
        return bool(self.events) and self.events[-1]["type"] == "complete"


def parse_frame(raw: str) -> Event | str:
    """A frame without its blank line: an event, or a comment."""
    if raw.startswith(":"):
        assert "\n" not in raw
        return raw
    id_line, data_line = raw.split("\n")  # exactly two lines
    event: Event = json.loads(data_line.removeprefix("data: "))
    assert id_line == f"id: {event['seq']}"
    return event


class EventStream:
    """An open `text/event-stream`."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.seen = Seen()
        self.raw = b""
        self._chunks = response.iter_raw()
        self._rest = ""
        self._waiting: deque[Event | str] = deque()

    def __iter__(self) -> Iterator[Event | str]:
        """Events and comments as they come, to the clean end of the body."""
        while self._waiting or self._read():
            while self._waiting:
                yield self._waiting.popleft()
        assert not self._rest

    def _read(self) -> bool:
        chunk = next(self._chunks, None)
        if chunk is None:
            return False
        self.raw += chunk
        self._rest += chunk.decode("ascii")
        assert "\r" not in self._rest
        *frames, self._rest = self._rest.split("\n\n")
        for raw in frames:
            frame = parse_frame(raw)
            self._waiting.append(frame)
            if isinstance(frame, str):
                self.seen.comments.append(frame)
            else:
                self.seen.events.append(frame)
        return True

    def until(self, type_: str, *, text: str = "") -> Event:
        """Read up to the next event of this type that holds the text."""
        for frame in self:
            if not isinstance(frame, str) and frame["type"] == type_ and text in json.dumps(frame):
                return frame
        raise AssertionError(f"the stream ended without {type_}: {self.seen.events}")

    def comment(self) -> str:
        return next(frame for frame in self if isinstance(frame, str))

    def rest(self) -> Seen:
        for _ in self:
            pass
        return self.seen


class Client:
    """One user's requests to one server."""

    def __init__(self, server: WebServer, headers: dict[str, str], *, path: str = "") -> None:
        self.server = server
        self.headers = headers
        self.path = path
        self.http = httpx.Client(
            base_url=server.url + path, headers=headers, timeout=PATIENCE_SECONDS
        )

    @contextlib.contextmanager
    def stream(self, url: str, **headers: str) -> Iterator[EventStream]:
        with self.open(url, **headers) as response:
            assert response.status_code == 200, response.read()
            yield EventStream(response)

    @contextlib.contextmanager
    def open(self, url: str, **headers: str) -> Iterator[httpx.Response]:
        given = {
            "Accept": "text/event-stream",
            **{k.replace("_", "-"): v for k, v in headers.items()},
        }
        with self.http.stream("GET", url, headers=given) as response:
            yield response

    def follow(self, url: str, **headers: str) -> Seen:
        """The whole stream."""
        with self.stream(url, **headers) as stream:
            return stream.rest()

    def json(self, url: str) -> Any:
        answer = self.http.get(url, headers={"Accept": "application/json"})
        assert answer.status_code == 200, answer.text
        return answer.json()

    @contextlib.contextmanager
    def socket(self, url: str, **options: Any) -> Iterator[ClientConnection]:
        with connect(
            self.server.url.replace("http", "ws", 1) + self.path + url,
            open_timeout=PATIENCE_SECONDS,
            compression=None,
            **{"additional_headers": self.headers, "max_size": None, **options},
        ) as socket:
            yield socket

    def close_code(self, url: str, **options: Any) -> int | None:
        """With what the socket is closed, once it has sent all."""
        with self.socket(url, **options) as socket:
            with contextlib.suppress(ConnectionClosed):
                while True:
                    socket.recv(timeout=PATIENCE_SECONDS)
            return socket.close_code
