"""A run's journal as the events of a streamed response.

The number of a frame is `seq * 64 + k`, `k` its index within its row: a client may drop between two
frames of one row and come back to either, and a row that one day makes more frames moves no number
but its own.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

from ...text import is_number
from . import items
from .items import COMPLETED, INCOMPLETE, Data, Item

STRIDE = 64
Event = dict[str, Any]
Frame = dict[str, Any]
Body = dict[str, Any]


class Fold:
    """Takes the events of one run from the first; gives the frames of each.

    `response` is the response as it stands after the last of them. `facts` are its fields that
    never change.
    """

    def __init__(self, key: str, facts: Data) -> None:
        self._key = key
        self.response: Data = {
            **facts,
            "status": "queued",
            "output": [],
            "error": None,
            "incomplete_details": None,
            "usage": None,
        }
        self._output: list[Item] = self.response["output"]
        self._open: tuple[str, str, int] | None = None
        """Type and stream of the deltas that the open item takes, and its index."""
        self._calls: dict[str, int] = {}
        """Index of the newest item of each call."""
        self._counts: Data = {}
        self._said: dict[str, Callable[[Event], Iterator[Body]]] = {
            "content_delta": self._text,
            "reasoning_delta": self._reasoning,
            "tool_call_started": self._call_started,
            "tool_call_delta": self._call_delta,
            "tool_call_arguments": self._call_arguments,
            "tool_call_finished": self._call_finished,
            "complete": self._end,
        }

    def __call__(self, event: Event) -> Iterator[Frame]:
        for k, body in enumerate(self._bodies(event)):
            assert k < STRIDE
            yield {**body, "sequence_number": event["seq"] * STRIDE + k}

    def _bodies(self, event: Event) -> Iterator[Body]:
        type_ = event["type"]
        if type_ in self._said:
            yield from self._said[type_](event)
        elif type_ == "run_queued":
            yield self._snapshot("response.created")
            yield self._snapshot("response.queued")
        elif type_ == "run_started":
            self.response["status"] = "in_progress"
            yield self._snapshot("response.in_progress")
        elif type_ == "usage":
            self._count(event)

    def _snapshot(self, type_: str) -> Body:
        return {"type": type_, "response": copy.deepcopy(self.response)}

    def _text(self, event: Event) -> Iterator[Body]:
        if event["stream"] != "text" or not event["delta"]:  # other streams are not the reply
            return
        if not self._takes(event):
            yield from self._close(COMPLETED)
            index, item = self._new("msg")
            yield from self._added(index, item)
            item["content"].append(items.output_text(""))
            part = items.output_text("")
            yield {"type": "response.content_part.added", **self._place(index, 0), "part": part}
            self._open = "content_delta", event["stream"], index
        index = self._opened
        self._output[index]["content"][0]["text"] += event["delta"]
        delta = {"delta": event["delta"], "logprobs": []}
        yield {"type": "response.output_text.delta", **self._place(index, 0), **delta}

    def _reasoning(self, event: Event) -> Iterator[Body]:
        if not event["delta"]:
            return
        if not self._takes(event):
            yield from self._close(COMPLETED)
            index, item = self._new("rs")
            yield from self._added(index, item)
            item["summary"].append(items.summary_text(""))
            part = items.summary_text("")
            place = self._place(index, summary_index=0)
            yield {"type": "response.reasoning_summary_part.added", **place, "part": part}
            self._open = "reasoning_delta", event["stream"], index
        index = self._opened
        self._output[index]["summary"][0]["text"] += event["delta"]
        place = self._place(index, summary_index=0)
        yield {
            "type": "response.reasoning_summary_text.delta",
            **place,
            "delta": event["delta"],
        }

    def _call_started(self, event: Event) -> Iterator[Body]:
        yield from self._close(COMPLETED)
        yield from self._call_added(event)
        if event.get("arguments") is not None:
            yield from self._call_arguments(event)

    def _call_added(self, event: Event) -> Iterator[Body]:
        index, item = self._new("fc", call_id=event["call_id"], name=event.get("name") or "tool")
        self._calls[event["call_id"]] = index
        yield from self._added(index, item)

    def _call_delta(self, event: Event) -> Iterator[Body]:
        index = self._calls.get(event["call_id"])
        if index is None or self._output[index]["status"] == COMPLETED:
            return
        self._output[index]["arguments"] += event["delta"]
        yield {
            "type": "response.function_call_arguments.delta",
            **self._place(index),
            "delta": event["delta"],
        }

    def _call_arguments(self, event: Event) -> Iterator[Body]:
        index, arguments = self._calls.get(event["call_id"]), event["arguments"]
        if index is None or self._output[index]["status"] == COMPLETED:
            return
        item = self._output[index]
        if not item["arguments"]:  # not streamed: clients that only join deltas get them so
            item["arguments"] = json.dumps(arguments)
            yield {
                "type": "response.function_call_arguments.delta",
                **self._place(index),
                "delta": item["arguments"],
            }
        elif not _says(item["arguments"], arguments):
            item["arguments"] = json.dumps(arguments)
        yield from self._call_done(index)

    def _call_done(self, index: int) -> Iterator[Body]:
        item = self._output[index]
        item["status"] = COMPLETED
        yield {
            "type": "response.function_call_arguments.done",
            **self._place(index),
            "name": item["name"],
            "arguments": item["arguments"],
        }
        yield self._done(index)

    def _call_finished(self, event: Event) -> Iterator[Body]:
        call_id = event["call_id"]
        if call_id not in self._calls:
            yield from self._call_added(event)
        index = self._calls[call_id]
        if self._output[index]["status"] != COMPLETED:
            if not self._output[index]["arguments"]:
                yield from self._call_arguments({**event, "arguments": {}})
            else:
                yield from self._call_done(index)
        error = event.get("error")
        output = {"error": error} if error is not None else event.get("result")
        name = self._output[index]["name"]
        index, item = self._new("fco", call_id=call_id, name=name, output=items.as_text(output))
        yield from self._added(index, item)
        yield self._done(index)

    def _count(self, event: Event) -> None:
        for name, value in event.items():
            if name not in ("type", "seq") and is_number(value):
                self._counts[name] = self._counts.get(name, 0) + value
        self.response["usage"] = items.usage(self._counts)

    def _end(self, event: Event) -> Iterator[Body]:
        is_whole = event["status"] == "completed"
        yield from self._close(COMPLETED if is_whole else INCOMPLETE)
        for item in self._output:  # calls without a result: what the client has of them stays
            if item["status"] == "in_progress":
                item["status"] = INCOMPLETE
        self.response["status"] = event["status"]
        if event["status"] == "failed":
            # The client knows a closed list of codes; the run's own is in the words.
            error = event.get("error") or {}
            words = f"{error.get('message', 'The run failed.')} ({error.get('code', 'failed')})"
            self.response["error"] = {"code": "server_error", "message": words}
        # There is no event for a response that was cancelled: the status in it says so.
        kinds = {"completed": "completed", "failed": "failed"}
        yield self._snapshot(f"response.{kinds.get(event['status'], 'incomplete')}")

    def _takes(self, event: Event) -> bool:
        return self._open is not None and self._open[:2] == (event["type"], event["stream"])

    @property
    def _opened(self) -> int:
        assert self._open is not None
        return self._open[2]

    def _new(self, kind: str, **fields: Any) -> tuple[int, Item]:
        make: dict[str, Any] = {
            "msg": items.message,
            "rs": items.reasoning,
            "fc": items.function_call,
            "fco": items.function_call_output,
        }
        index = len(self._output)
        item = make[kind](f"{kind}_{self._key}_{index}", **fields)
        self._output.append(item)
        return index, item

    def _added(self, index: int, item: Item) -> Iterator[Body]:
        added = {"output_index": index, "item": copy.deepcopy(item)}
        yield {"type": "response.output_item.added", **added}

    def _done(self, index: int) -> Body:
        item = copy.deepcopy(self._output[index])
        return {"type": "response.output_item.done", "output_index": index, "item": item}

    def _close(self, status: str) -> Iterator[Body]:
        """Close the item that takes deltas, if one is open."""
        if self._open is None:
            return
        type_, _, index = self._open
        self._open = None
        item = self._output[index]
        item["status"] = status
        if type_ == "content_delta":
            part, place = item["content"][0], self._place(index, 0)
            text = {"text": part["text"], "logprobs": []}
            yield {"type": "response.output_text.done", **place, **text}
            yield {"type": "response.content_part.done", **place, "part": dict(part)}
        else:
            part, place = item["summary"][0], self._place(index, summary_index=0)
            done = "response.reasoning_summary"
            yield {"type": f"{done}_text.done", **place, "text": part["text"]}
            yield {"type": f"{done}_part.done", **place, "part": dict(part)}
        yield self._done(index)

    def _place(self, index: int, content_index: int | None = None, **more: int) -> Data:
        place = {"item_id": self._output[index]["id"], "output_index": index, **more}
        return place if content_index is None else {**place, "content_index": content_index}


def _says(text: str, value: Any) -> bool:
    try:
        return bool(json.loads(text) == value)
    except (ValueError, RecursionError):
        return False
