"""Behind nginx: its defaults for server-sent events, and the upgrade headers for WebSocket."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import find_program
from tests.support import PATIENCE_SECONDS, free_port, until

from .conftest import client_of
from .servers import WebServer
from .told import Told
from .viewers import Client

pytestmark = pytest.mark.nginx

CONFIG = """
daemon off;
pid {folder}/pid;
error_log stderr;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    scgi_temp_path {folder}/scgi;
    uwsgi_temp_path {folder}/uwsgi;
    gzip on;
    gzip_proxied any;
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass {upstream};
        }}
        location /ws/ {{
            proxy_pass {upstream};
            proxy_http_version 1.1;
            proxy_set_header Upgrade $http_upgrade;
            proxy_set_header Connection upgrade;
        }}
    }}
}}
"""


class Nginx:
    """What a `Client` needs to know of a server."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    is_open = WebServer.is_open


@pytest.fixture
def behind(server: WebServer, user: Any, tmp_path: Path) -> Iterator[Client]:
    program = find_program("nginx")
    assert program
    nginx, config = Nginx(free_port()), tmp_path / "nginx.conf"
    tmp_path.chmod(0o755)
    config.write_text(CONFIG.format(folder=tmp_path, port=nginx.port, upstream=server.url))
    process = subprocess.Popen([program, "-e", "stderr", "-p", str(tmp_path), "-c", str(config)])
    try:
        until(lambda: nginx.is_open(), "nginx to listen")
        yield client_of(nginx, user)  # type: ignore[arg-type]
    finally:
        process.terminate()
        process.wait(PATIENCE_SECONDS)


def test_events_pass_through_the_default_settings_as_they_come(behind: Client, user: Any) -> None:
    told = Told(user)
    with behind.stream(told.events, Accept_Encoding="gzip") as stream:
        stream.until("run_started")
        told.say("one")
        stream.until("content_delta", text="one")
        assert stream.comment() == ": keepalive"
        told.say("two")
        stream.until("content_delta", text="two")
        told.end()
        assert stream.rest().text == "onetwo"
    assert "content-encoding" not in stream.response.headers
    with behind.open(told.events, Last_Event_ID=str(stream.seen.cursor)) as response:
        assert response.status_code == 204


def test_sockets_pass_through_with_the_upgrade_headers(behind: Client, user: Any) -> None:
    told = Told(user)
    with behind.socket(f"{told.socket}?from=2") as socket:
        assert json.loads(socket.recv(timeout=PATIENCE_SECONDS))["type"] == "run_started"
        told.say("one")
        told.end()
        assert [json.loads(frame)["type"] for frame in socket][-1] == "complete"
    assert socket.close_code == 1000
