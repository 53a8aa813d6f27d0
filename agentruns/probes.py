"""Tell an orchestrator that this worker lives, by a file or a port; and hand out its metrics.

Live means that the supervising thread ticks: a database that is away is no reason to be killed.
Ready means that the database took a sign of life within the lease, and that it is not draining.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from . import exposition
from .worker import Worker

logger = logging.getLogger(__name__)

STILL_SECONDS = 10.0
"""A supervisor that has not ticked for this long is stuck."""
TOUCH_SECONDS = 1.0


class LivenessFile:
    """A file whose modification time is that of the last sign of life; gone after a clean end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._touched = 0.0

    def touch(self) -> None:
        now = time.monotonic()
        if now - self._touched < TOUCH_SECONDS:
            return
        self._touched = now
        try:
            self.path.touch()
        except OSError as error:
            logger.warning("liveness file %s: %s", self.path, error)

    def remove(self) -> None:
        with suppress(OSError):
            self.path.unlink()


def is_live(worker: Worker) -> bool:
    return time.monotonic() - worker.ticked < STILL_SECONDS


def is_ready(worker: Worker) -> bool:
    lease = worker.config.LEASE_SECONDS
    return not worker.is_draining and time.monotonic() - worker.heart.seen < lease


def serve(worker: Worker, address: str, port: int, *, paths: set[str]) -> ThreadingHTTPServer:
    """Answer `/live`, `/ready` and `/metrics` (those that are in `paths`) in threads of its own."""

    class Handler(BaseHTTPRequestHandler):
        server_version = "agentruns"

        def do_GET(self) -> None:
            path = self.path.partition("?")[0].rstrip("/")
            if path not in paths:
                self._answer(404, "text/plain", f"There is {', '.join(sorted(paths))}.".encode())
            elif path == "/metrics":
                self._answer(200, *exposition.expose())
            else:
                ok = is_live(worker) if path == "/live" else is_ready(worker)
                body = {path[1:]: ok, "slots_taken": len(worker.executions())}
                self._answer(200 if ok else 503, "application/json", json.dumps(body).encode())

        def _answer(self, status: int, content_type: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            logger.debug(*args)

    server = ThreadingHTTPServer((address, port), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="agentruns-probes", daemon=True).start()
    served = ", ".join(sorted(paths))
    logger.info("answering %s on %s:%d", served, address, server.server_address[1])
    return server
