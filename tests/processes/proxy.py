"""A TCP proxy before the server, for networks that fall silent and connections that are cut."""

from __future__ import annotations

import contextlib
import socket
import threading
from urllib.parse import urlsplit

CHUNK = 65536


class Proxy:
    """Passes bytes on, until it is told otherwise."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = parts.hostname, parts.port
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        self.url = url.replace(f":{parts.port}/", f":{port}/")
        self._flow = threading.Event()
        self._flow.set()
        self._trap: tuple[bytes, bytes] | None = None
        self.sprung = threading.Event()
        """The trapped statement was answered by the server, and the answer was dropped."""
        self._links: list[Link] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def fall_silent(self) -> None:
        """Hold everything back, also of new connections, without an error for anybody."""
        self._flow.clear()

    def speak_again(self) -> None:
        self._flow.set()

    def cut(self) -> None:
        """Cut every connection."""
        for link in self._links:
            link.close()

    def drop_answer_to(self, connection: str, marker: bytes) -> None:
        """Let the next statement of that application's name whose values contain the marker reach
        the server, and cut the connection when the answer comes: it was executed, and nobody hears
        of it.
        """
        self.sprung.clear()
        self._trap = f"application_name\0{connection}\0".encode(), marker

    def is_trap(self, head: bytes, text: bytes) -> bool:
        if self._trap is None or self._trap[0] not in head or self._trap[1] not in text:
            return False
        self._trap = None
        return True

    def wait_for_flow(self) -> None:
        self._flow.wait()

    def close(self) -> None:
        self._flow.set()
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._links.append(Link(self, client, self._target))


class Link:
    """One client's connection and its twin to the server."""

    def __init__(self, proxy: Proxy, client: socket.socket, target: object) -> None:
        self._proxy = proxy
        self._client = client
        self._server = socket.create_connection(target)  # type: ignore[arg-type]
        self._dropping = False
        for pump in (self._upwards, self._downwards):
            threading.Thread(target=pump, daemon=True).start()

    def close(self) -> None:
        for end in (self._client, self._server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _upwards(self) -> None:
        head = b""
        with contextlib.suppress(OSError):
            while data := self._client.recv(CHUNK):
                self._proxy.wait_for_flow()
                head = (head + data)[:2000]
                if self._proxy.is_trap(head, data):
                    self._dropping = True
                self._server.sendall(data)
        self._proxy.wait_for_flow()
        self.close()

    def _downwards(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._server.recv(CHUNK):
                self._proxy.wait_for_flow()
                if self._dropping:
                    self._proxy.sprung.set()
                    break
                self._client.sendall(data)
        self._proxy.wait_for_flow()
        self.close()
