"""What a client costs that holds its request open: neither a thread nor a connection."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import psutil
import pytest
from django.db import connection

from tests.support import until

from .conftest import Site

MANY = 12


def hold_open(port: int, path: str, token: str, gate: Path) -> socket.socket:
    """Send the request, and read the head of its answer."""
    model = '"model": "story", "assistant_id": "story"'
    said = '"input": {"messages": "Go"}' if path.startswith("/lg") else '"input": "Go"'
    stream = ', "stream": true' if path.endswith("#stream") else ""
    body = f'{{{model}, {said}, "metadata": {{"gate": "{gate}"}}{stream}}}'
    request = (
        f"POST {path.partition('#')[0]} HTTP/1.1\r\nHost: localhost\r\nx-api-key: {token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    )
    client = socket.create_connection(("127.0.0.1", port), timeout=60)
    client.sendall(request.encode())
    assert client.recv(4096).startswith(b"HTTP/1.1 200")
    return client


def connections_held() -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            "AND backend_type = 'client backend' AND state = 'idle' "
            "AND query NOT LIKE '%pg_notify%'"
        )
        (count,) = cursor.fetchone()
    return int(count)


def threads_of(port: int) -> int:
    for each in psutil.net_connections("tcp"):
        if each.status == psutil.CONN_LISTEN and each.laddr.port == port and each.pid:
            return psutil.Process(each.pid).num_threads()
    raise AssertionError(f"nothing listens on {port}")


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/responses#stream", "/lg/runs/wait"])
def test_a_client_that_waits_holds_no_thread_and_no_connection(
    site: Site, token: str, tmp_path: Path, path: str
) -> None:
    port, gate = site.ports["uvicorn"], tmp_path / "gate"
    with contextlib.ExitStack() as held:
        held.callback(gate.touch)
        held.enter_context(hold_open(port, path, token, gate))  # starts what all share
        threads, connections = threads_of(port), connections_held()
        for _ in range(MANY):
            held.enter_context(hold_open(port, path, token, gate))

        until(lambda: threads_of(port) <= threads + MANY // 3, "the threads to be given back")
        until(lambda: connections_held() <= connections + MANY // 3, "the connections to close")
