"""Run a graph of LangGraph: `agent("assistant")(from_langgraph(my_graph))`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any, Literal

from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langgraph.graph.state import CompiledStateGraph

from ...context import RunContext
from .calls import Calls, calls_of, placed, plain, words

MODES: list[Literal["messages", "updates", "custom"]] = ["messages", "updates", "custom"]


def from_langgraph(
    graph: CompiledStateGraph[Any, Any, Any, Any],
    *,
    context: Callable[[RunContext], Any] = lambda run: None,
    config: Callable[[RunContext], Any] = lambda run: None,
) -> Callable[[RunContext], Awaitable[None]]:
    """The graph's runs as runs of agentruns, with the conversation as their `messages`.

    Compile the graph without a checkpointer: the conversation is its memory. `context` and `config`
    are called with the run and give what `astream` takes under these names. What a node hands to
    `get_stream_writer()` becomes an event: a dict with a `type` under that name, all else under
    `custom`. A stop cancels the graph's run, its tools and its provider's stream.
    """

    async def run_agent(run: RunContext) -> None:
        said = history(await run.messages())
        async with Calls(run) as calls:
            teller = _Teller(run, calls)
            events = graph.astream(
                {"messages": said}, config(run), context=context(run), stream_mode=MODES
            )
            async with aclosing(events):  # type: ignore[type-var]  # declared as an iterator
                async for mode, event in events:
                    await teller.tell(mode, event)

    return placed(run_agent)


class _Teller:
    """Journals the events of one run of the graph."""

    def __init__(self, run: RunContext, calls: Calls) -> None:
        self._run = run
        self._calls = calls
        self._streamed: dict[tuple[str, Any], str] = {}
        """Call ids by the step that streams them and their index: only a call's first chunk has its
        id.
        """

    async def tell(self, mode: str, event: Any) -> None:
        match mode:
            case "messages":
                message, facts = event
                await self._message(message, str(facts.get("langgraph_checkpoint_ns")))
            case "updates":
                for update in event.values():
                    for message in _messages(update):
                        await self._update(message)
            case "custom":
                await self._custom(event)

    async def _message(self, message: BaseMessage, step: str) -> None:
        match message:
            case AIMessageChunk():
                await self._say(message)
                for chunk in message.tool_call_chunks:
                    await self._chunk(step, chunk)
            case AIMessage():  # of a model that does not stream, or written by a node
                await self._say(message)
                await self._update(message)
            case ToolMessage():
                await self._update(message)

    async def _say(self, message: AIMessage) -> None:
        for block in message.content_blocks:
            match block:
                case {"type": "text", "text": str(text)} if text:
                    await self._run.text(text)
                case {"type": "reasoning", "reasoning": str(text)} if text:
                    await self._run.reasoning(text)
        if usage := message.usage_metadata:
            await self._run.usage(
                input_tokens=usage["input_tokens"], output_tokens=usage["output_tokens"]
            )

    async def _chunk(self, step: str, chunk: Any) -> None:
        place = step, chunk.get("index")
        if chunk.get("id"):
            self._streamed[place] = chunk["id"]
            await self._calls.start(chunk["id"], chunk.get("name") or "tool")
        if place in self._streamed:
            await self._calls.delta(self._streamed[place], chunk.get("args") or "")

    async def _update(self, message: Any) -> None:
        match message:
            case AIMessage():
                for call in message.tool_calls:
                    if call["id"]:
                        await self._calls.arguments(call["id"], call["name"], call["args"])
            case ToolMessage(status="error"):
                await self._calls.error(message.tool_call_id, words(message.content))
            case ToolMessage():
                await self._calls.result(message.tool_call_id, message.content)

    async def _custom(self, event: Any) -> None:
        match plain(event):
            case {"type": str(type_)} as given:
                payload = {str(key): value for key, value in given.items() if key != "type"}
                await self._run.emit(type_, **payload)
            case value:
                await self._run.emit("custom", value=value)


def _messages(update: Any) -> list[Any]:
    said = update.get("messages", []) if isinstance(update, dict) else []
    return said if isinstance(said, list) else [said]


def history(messages: Sequence[dict[str, Any]]) -> list[BaseMessage]:
    """The transcript as messages of LangChain, with its tool calls and their outcomes.

    Each has an id: what a node returns again is not said again.
    """
    said: list[BaseMessage] = []
    for number, message in enumerate(messages):
        name, content = f"history-{number}", message["content"]
        match message["role"]:
            case "user":
                said.append(HumanMessage(content, id=name))
            case "system":
                said.append(SystemMessage(content, id=name))
            case _:
                said += _reply(message, name)
    return said


def _reply(message: dict[str, Any], name: str) -> list[BaseMessage]:
    said: list[BaseMessage] = []
    if calls := calls_of(message):
        called = [
            {"id": call["call_id"], "name": call["name"], "args": _arguments(call)}
            for call in calls
        ]
        said.append(AIMessage("", tool_calls=called, id=f"{name}-calls"))
        said += [
            ToolMessage(
                call["outcome"],
                tool_call_id=call["call_id"],
                id=f"{name}-{call['call_id']}",
                status="error" if call["is_error"] else "success",
            )
            for call in calls
        ]
    if message["content"]:
        said.append(AIMessage(message["content"], id=name))
    return said


def _arguments(call: dict[str, Any]) -> dict[str, Any]:
    given = call["arguments"]
    return given if isinstance(given, dict) else {"value": given}
