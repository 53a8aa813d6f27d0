"""Send one message by HTTP and follow its run's stream, as any client would."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TextIO

SILENCE_SECONDS = 60  # keepalives come far more often
RECONNECT_SECONDS = 60
PAUSE_SECONDS = 0.5


class OnceError(Exception):
    """The message got no whole reply; the text says why."""


@dataclass(slots=True)
class Client:
    """One user's way to the server on this machine."""

    port: int
    token: str

    def send(self, content: str) -> str:
        """Ask for a run; return its id."""
        body = json.dumps({"content": content})
        with self._request("POST", "/api/runs", body) as response:
            answer = response.read().decode(errors="replace")
        if response.status != 202:
            raise OnceError(f"The message was answered by {response.status}{_reason(answer)}")
        run_id: str = json.loads(answer)["run_id"]
        return run_id

    def events(self, run_id: str) -> Iterator[dict[str, Any]]:
        """Yield every event of the run up to `complete`, over as many connections as it takes."""
        cursor = 0
        patience = time.monotonic() + RECONNECT_SECONDS
        broken = suppress(OSError, http.client.HTTPException)
        while time.monotonic() < patience:
            with broken, closing(self._connected(run_id, cursor)) as events:
                for event in events:
                    yield event
                    if event["type"] == "complete":
                        return
                    cursor = event["seq"]
                    patience = time.monotonic() + RECONNECT_SECONDS
            time.sleep(PAUSE_SECONDS)
        raise OnceError(f"The stream broke and gave nothing for {RECONNECT_SECONDS} s.")

    def _connected(self, run_id: str, cursor: int) -> Generator[dict[str, Any], None, None]:
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(cursor)}
        path = f"/api/runs/{run_id}/events"
        with self._request("GET", path, headers=headers) as response:
            if response.status == 503:
                return
            if response.status != 200:
                answer = response.read().decode(errors="replace")
                raise OnceError(f"The stream was answered by {response.status}{_reason(answer)}")
            while line := response.readline():
                if line.startswith(b"data:"):
                    yield json.loads(line[5:])

    @contextmanager
    def _request(
        self, method: str, path: str, body: str | None = None, headers: dict[str, str] | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SILENCE_SECONDS)
        login = {"Authorization": f"Token {self.token}", "Content-Type": "application/json"}
        with closing(connection):
            connection.request(method, path, body, login | (headers or {}))
            with connection.getresponse() as response:
                yield response


def converse(client: Client, content: str, reply: TextIO, aside: TextIO) -> None:
    """Print the reply to `content` on `reply` as it comes, and what the agent does on `aside`."""
    run_id = client.send(content)
    for event in client.events(run_id):
        match event["type"]:
            case "content_delta":
                print(event["delta"], end="", file=reply, flush=True)
            case "tool_call_started":
                print(f"[{event['name']} {json.dumps(event['arguments'])}]", file=aside, flush=True)
            case "complete":
                print(file=reply, flush=True)
                _judge(event)


def _judge(complete: dict[str, Any]) -> None:
    if complete["status"] == "completed":
        return
    error = complete.get("error") or {}
    reason = f": {error.get('message')} ({error.get('code')})" if error else ""
    raise OnceError(f"The run ended {complete['status']}{reason}")


def _reason(answer: str) -> str:
    """Return what a refusal says, where it is JSON and no page."""
    try:
        said = json.loads(answer)
    except ValueError:
        return "."
    return f": {said.get('detail') or json.dumps(said)}" if isinstance(said, dict) else "."
