"""The demo's own client, against a server whose streams break."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from project.once import Client, OnceError

LAST = 5


class Breaking(BaseHTTPRequestHandler):
    """Two events a connection; every third request finds no database."""

    cursors: list[int]

    def do_GET(self) -> None:
        cursor = int(self.headers["Last-Event-ID"])
        self.cursors.append(cursor)
        if len(self.cursors) % 3 == 2:
            self.send_response(503)
            self.end_headers()
            return
        self.send_response(200)
        self.end_headers()
        for seq in range(cursor + 1, min(cursor + 2, LAST) + 1):
            event = {"type": "complete" if seq == LAST else "content_delta", "seq": seq}
            frame = f"id: {seq}\ndata: {json.dumps(event)}\n\n: keepalive\n\n"
            self.wfile.write(frame.encode())

    def do_POST(self) -> None:
        body = b'{"detail": "Too many turns are waiting.", "code": "queue_full"}'
        self.send_response(429)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def client() -> Iterator[Client]:
    Breaking.cursors = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Breaking) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield Client(server.server_port, "token")
        server.shutdown()


def test_a_broken_stream_goes_on_where_it_broke(client: Client) -> None:
    events = list(client.events("run"))

    assert [event["seq"] for event in events] == [1, 2, 3, 4, 5]
    assert Breaking.cursors == [0, 2, 2, 4]


def test_a_refused_message_says_why(client: Client) -> None:
    with pytest.raises(OnceError, match=r"answered by 429: Too many turns are waiting\."):
        client.send("hello")
