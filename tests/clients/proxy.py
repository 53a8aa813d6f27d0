"""A proxy that cuts the first connection after a number of the server's bytes."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading

CHUNK = 65536


class CuttingProxy:
    """In front of the server at `port`; later connections are passed on whole."""

    def __init__(self, port: int, cut_after: int) -> None:
        self._target = "127.0.0.1", port
        self._left: int | None = cut_after
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.was_cut = False
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                allowed, self._left = self._left, None
                pumps = (self._upwards, (client, server)), (self._down, (server, client, allowed))
                for pump, ends in pumps:
                    threading.Thread(target=pump, args=ends, daemon=True).start()

    def _upwards(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(CHUNK):
                server.sendall(data)
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)

    def _down(self, server: socket.socket, client: socket.socket, allowed: int | None) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(CHUNK):
                if allowed is not None and len(data) >= allowed:
                    client.sendall(data[:allowed])
                    self._cut(client)
                    break
                client.sendall(data)
                allowed = allowed and allowed - len(data)
        for end in (server, client):
            end.close()

    def _cut(self, client: socket.socket) -> None:
        self.was_cut = True
        # A reset: the client sees an error, not the end of the body.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.shutdown(socket.SHUT_RD)  # while the other pump reads, closing would wait for it
