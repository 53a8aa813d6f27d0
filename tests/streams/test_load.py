"""Many viewers: those who only wait, those who never read, those who vanish."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator
from typing import Any

import httpx

from tests.support import PATIENCE_SECONDS, until

from .conftest import Database, client_of
from .servers import WebServer
from .told import Told
from .viewers import Client

MEGABYTE = 1024 * 1024
CHUNK = "0123456789abcdef" * 2000  # 32 kB


class RawViewer:
    """A socket that asked for a stream and reads only what it is told to."""

    def __init__(self, client: Client, url: str, *, buffer: int | None = None) -> None:
        self.socket = socket.socket()
        if buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        self.socket.settimeout(PATIENCE_SECONDS)
        self.socket.connect(("127.0.0.1", client.server.port))
        headers = "".join(f"{name}: {value}\r\n" for name, value in client.headers.items())
        self.socket.sendall(f"GET {url} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n".encode())
        self.received = b""

    def read_until(self, needle: bytes) -> None:
        while needle not in self.received:
            chunk = self.socket.recv(65536)
            assert chunk, "the stream ended"
            self.received += chunk

    def vanish(self) -> None:
        """Without a farewell: the server gets a reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


@contextlib.contextmanager
def crowd(client: Client, url: str, count: int, **options: Any) -> Iterator[list[RawViewer]]:
    viewers = [RawViewer(client, url, **options) for _ in range(count)]
    try:
        yield viewers
    finally:
        for viewer in viewers:
            viewer.socket.close()


def inside(server: WebServer) -> dict[str, int]:
    return httpx.get(f"{server.url}/inside", timeout=PATIENCE_SECONDS).json()  # type: ignore[no-any-return]


def test_500_idle_viewers_hold_4_connections_and_no_threads(
    server: WebServer, user: Any, database: Database
) -> None:
    told, client = Told(user), client_of(server, user)
    with crowd(client, told.events, 2) as few:
        for viewer in few:
            viewer.read_until(b"run_started")
        threads = server.threads

    with crowd(client, told.events, 500) as viewers:
        for viewer in viewers:
            viewer.read_until(b"run_started")
        for viewer in viewers[:20]:
            viewer.read_until(b": keepalive")  # they wait now

        backends = database.backends(server.pid)
        assert backends == [
            "agentruns hub",
            "agentruns read",
            "agentruns read",
            "agentruns viewers",
        ]
        assert server.threads <= threads
        assert inside(server)["viewers"] == 500
    until(lambda: inside(server)["viewers"] == 0, "all to have left")


def test_viewers_who_never_read_or_vanish_cost_bounded_memory_and_nobody_else_anything(
    server: WebServer, user: Any, database: Database
) -> None:
    told, client = Told(user), client_of(server, user)
    with crowd(client, told.events, 1) as [first]:
        first.read_until(b"run_started")
    until(lambda: inside(server)["viewers"] == 0, "the first to have left")
    memory, connections, tasks = server.memory, server.connections, inside(server)["tasks"]

    with (
        crowd(client, told.events, 10) as readers,
        crowd(client, told.events, 40, buffer=4096) as deaf,
        crowd(client, told.events, 250) as fickle,
    ):
        for viewer in (*readers, *deaf, *fickle):
            viewer.read_until(b"run_started")
        for number in range(300):  # 10 MB for each; the kernel takes about 4 MB of those
            told.say(CHUNK)
            if number == 20:
                for viewer in fickle:
                    viewer.vanish()
            for viewer in readers:
                viewer.read_until(b'"seq": %d,' % (number + 4))
                viewer.received = viewer.received[-100:]
        told.end()
        for viewer in readers:
            viewer.read_until(b"complete")
        grown = server.memory - memory
        assert inside(server)["viewers"] == 40

    until(lambda: inside(server)["viewers"] == 0, "all to have left")
    until(lambda: inside(server)["tasks"] <= tasks, "their tasks to end")
    until(lambda: server.connections <= connections, "their connections to close")
    assert len(database.backends(server.pid)) <= 4
    print(f"{server.kind}: {grown / MEGABYTE:.0f} MB more with 40 who never read")
    assert grown < 100 * MEGABYTE
