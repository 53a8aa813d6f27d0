"""One agent of each framework, with the same tool and a model that needs no provider.

Asked anything, the model thinks, calls `add` twice at once, and answers with the results. What the
user says names what goes otherwise: `slow` has a call hang, `fail` has it raise, `hang` has the
model stop in the middle of a word. `back` echoes what the model is given.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator
from typing import Any

import agents as openai
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessageChunk, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGenerationChunk
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.config import get_stream_writer
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from openai import AsyncOpenAI
from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry, RunContext
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo, DeltaThinkingPart, DeltaToolCall, FunctionModel
from pydantic_ai.models.test import TestModel

import agentruns
from agentruns.contrib.agents.langgraph import from_langgraph
from agentruns.contrib.agents.openai_agents import from_openai_agents
from agentruns.contrib.agents.pydantic_ai import from_pydantic_ai
from tests.agents import PATIENCE_SECONDS, trace

openai.set_tracing_disabled(True)

CALLS = {"c1": {"a": 1, "b": 2}, "c2": {"a": 7, "b": 2}}
Run = agentruns.RunContext


class NoSevens(Exception):
    pass


class City(BaseModel):
    city: str


async def compute(run: Run, a: int, b: int) -> int:
    """The sum; the second call comes back first, and is the one that fails."""
    asked = (await run.messages())[-1]["content"]
    trace(run, f"called {a}")
    try:
        if a == 1:
            await asyncio.sleep(PATIENCE_SECONDS if "slow" in asked else 0.2)
        elif "fail" in asked:
            raise NoSevens("secret")
    except asyncio.CancelledError:
        await asyncio.sleep(0)
        trace(run, "cancelled")
        raise
    return a + b


# pydantic-ai


async def stream(
    messages: list[ModelMessage], info: AgentInfo
) -> AsyncIterator[str | dict[int, Any]]:
    asked = messages[-1].parts[-1]
    if asked.part_kind == "tool-return":
        yield "the sum "
        yield "is 3"
    elif "back" in str(asked.content):
        yield " | ".join(_described(part) for message in messages for part in message.parts)
    elif "hang" in str(asked.content):
        yield "wait"
        await asyncio.sleep(PATIENCE_SECONDS)
    else:
        yield {0: DeltaThinkingPart(content="hm")}
        for index, (call_id, arguments) in enumerate(CALLS.items(), 1):
            head = json.dumps(arguments)[:5]
            yield {index: DeltaToolCall(name="add", json_args=head, tool_call_id=call_id)}
        for index, arguments in enumerate(CALLS.values(), 1):
            yield {index: DeltaToolCall(json_args=json.dumps(arguments)[5:])}


def _described(part: Any) -> str:
    named = f"{part.tool_name}:" if hasattr(part, "tool_name") else ""
    return f"{part.part_kind}={named}{getattr(part, 'args', None) or part.content}"


pydantic_agent = Agent(FunctionModel(stream_function=stream), deps_type=Run)


@pydantic_agent.tool
async def add(context: RunContext[Run], a: int, b: int) -> int:
    return await compute(context.deps, a, b)


agentruns.agent("pydantic_ai")(from_pydantic_ai(pydantic_agent, deps=lambda run: run))


typed_agent = Agent(
    TestModel(custom_output_args={"city": "Bern"}), output_type=City, retries={"tools": 1}
)


@typed_agent.tool
def population(context: RunContext[None]) -> int:
    if context.retry == 0:
        raise ModelRetry("ask again")
    return 7


agentruns.agent("pydantic_ai_typed")(from_pydantic_ai(typed_agent))


# OpenAI Agents SDK


@openai.function_tool(name_override="add", failure_error_function=None)
async def add_for_openai(context: openai.RunContextWrapper[Run], a: int, b: int) -> int:
    return await compute(context.context, a, b)


client = AsyncOpenAI(base_url=os.environ["RESPONSES_URL"], api_key="none", max_retries=0)
openai_agent = openai.Agent[Run](
    "helper",
    tools=[add_for_openai],
    model=openai.OpenAIResponsesModel("scripted", client),
)

agentruns.agent("openai_agents")(from_openai_agents(openai_agent, context=lambda run: run))


# LangGraph


class Scripted(GenericFakeChatModel):
    messages: Iterator[Any] = iter(())

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self

    async def _astream(
        self, messages: list[BaseMessage], *arguments: Any, **options: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        for chunk in script(messages):
            yield ChatGenerationChunk(message=chunk)
        if "hang" in str(messages[-1].content):
            await asyncio.sleep(PATIENCE_SECONDS)


def script(messages: list[BaseMessage]) -> Iterator[AIMessageChunk]:
    asked = str(messages[-1].content)
    if isinstance(messages[-1], ToolMessage):
        yield AIMessageChunk("the sum ")
        yield AIMessageChunk("is 3")
    elif "back" in asked:
        said = [f"{m.type}={getattr(m, 'tool_calls', None) or m.content}" for m in messages]
        yield AIMessageChunk(" | ".join(said))
    elif "hang" in asked:
        yield AIMessageChunk("wait")
    else:
        yield AIMessageChunk([{"type": "reasoning", "reasoning": "hm", "index": 0}])
        for index, (call_id, arguments) in enumerate(CALLS.items()):
            yield _piece(json.dumps(arguments)[:5], index, call_id, "add")
        for index, arguments in enumerate(CALLS.values()):
            yield _piece(json.dumps(arguments)[5:], index)
    usage = {"input_tokens": 5, "output_tokens": 3, "total_tokens": 8}
    yield AIMessageChunk("", usage_metadata=usage)


def _piece(
    arguments: str, index: int, call_id: str | None = None, name: str | None = None
) -> AIMessageChunk:
    chunk = {"name": name, "args": arguments, "id": call_id, "index": index}
    return AIMessageChunk("", tool_call_chunks=[chunk])


model = Scripted()


async def think(state: MessagesState) -> dict[str, Any]:
    get_stream_writer()({"type": "step", "name": "think"})
    return {"messages": [await model.ainvoke(state["messages"])]}


def graph_for(run: Run) -> Any:
    return {"configurable": {"run": run}}


@tool("add")
async def add_for_langgraph(a: int, b: int, config: RunnableConfig) -> int:
    """Add two numbers."""
    return await compute(config["configurable"]["run"], a, b)


builder = StateGraph(MessagesState)
builder.add_node("think", think)
builder.add_node("tools", ToolNode([add_for_langgraph]))
builder.add_edge(START, "think")
builder.add_conditional_edges("think", tools_condition)
builder.add_edge("tools", "think")

agentruns.agent("langgraph")(from_langgraph(builder.compile(), config=graph_for))
