"""A local server that speaks as much of OpenAI's Responses API as an agent with a tool needs."""

from __future__ import annotations

import json
import select
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Event = dict[str, Any]

HANG_SECONDS = 60.0
"""How long a stream that hangs waits for its client to go away."""


class ResponsesServer:
    """Asked for the first time, it calls `add` twice at once; given the results, it answers. Told
    to `hang`, it says a word and then waits until its client is gone.
    """

    def __init__(self) -> None:
        server = self
        self.requests: list[Event] = []
        self.client_left = threading.Event()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.requests.append(body)
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.end_headers()
                for event in server.answer(body):
                    self.say(event)
                if "hang" in json.dumps(body["input"]):
                    gone, _, _ = select.select([self.connection], [], [], HANG_SECONDS)
                    if gone and not self.connection.recv(1):
                        server.client_left.set()

            def say(self, event: Event) -> None:
                self.wfile.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
                self.wfile.flush()

            def log_message(self, *arguments: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}/v1"

    def __enter__(self) -> ResponsesServer:
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    def answer(self, body: Event) -> Iterator[Event]:
        results = [item for item in body["input"] if item.get("type") == "function_call_output"]
        whole = "hang" not in json.dumps(body["input"])
        items = [said("the sum is 3")] if results else [thought("hm"), call("c1", 1), call("c2", 7)]
        number = len(self.requests)
        yield numbered(number, "response.created", response=response([]))
        if not whole:
            items = [said("wait")]
        for index, item in enumerate(items):
            yield from streamed(number, index, item)
        if whole:
            yield numbered(number, "response.completed", response=response(items, done=True))


def said(text: str) -> Event:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {
        "type": "message",
        "id": "m1",
        "role": "assistant",
        "status": "completed",
        "content": content,
    }


def thought(text: str) -> Event:
    return {"type": "reasoning", "id": "r1", "summary": [{"type": "summary_text", "text": text}]}


def call(call_id: str, a: int) -> Event:
    return {
        "type": "function_call",
        "id": f"f_{call_id}",
        "call_id": call_id,
        "name": "add",
        "arguments": json.dumps({"a": a, "b": 2}),
        "status": "completed",
    }


def streamed(number: int, index: int, item: Event) -> Iterator[Event]:
    place = {"output_index": index, "item_id": item["id"]}
    empty = (
        item
        | {
            "message": {"content": []},
            "function_call": {"arguments": ""},
            "reasoning": {"summary": []},
        }[item["type"]]
    )
    yield numbered(number, "response.output_item.added", output_index=index, item=empty)
    match item["type"]:
        case "message":
            for word in pieces(item["content"][0]["text"]):
                yield numbered(
                    number,
                    "response.output_text.delta",
                    **place,
                    content_index=0,
                    delta=word,
                    logprobs=[],
                )
        case "reasoning":
            yield numbered(
                number,
                "response.reasoning_summary_text.delta",
                **place,
                summary_index=0,
                delta=item["summary"][0]["text"],
            )
        case "function_call":
            for piece in pieces(item["arguments"]):
                yield numbered(
                    number, "response.function_call_arguments.delta", **place, delta=piece
                )
    yield numbered(number, "response.output_item.done", output_index=index, item=item)


def pieces(text: str) -> list[str]:
    return [text[start : start + 5] for start in range(0, len(text), 5)]


def numbered(number: int, type_: str, **payload: Any) -> Event:
    return {"type": type_, "sequence_number": number, **payload}


def response(output: list[Event], *, done: bool = False) -> Event:
    usage = {
        "input_tokens": 5,
        "output_tokens": 3,
        "total_tokens": 8,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 0,
        "model": "scripted",
        "status": "completed" if done else "in_progress",
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": usage if done else None,
    }
