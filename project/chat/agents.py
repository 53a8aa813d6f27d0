"""The demo's agents: scripted ones, and a small language model that runs on this machine."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator

from agentruns import BlockingRunContext, RunContext, agent

from . import calculator, notes, real, smollm

WORD_SECONDS = 0.03
SLOW_WORD_SECONDS = 0.1
JOB_STEPS = 20
STEP_SECONDS = 0.5


@agent("assistant")
async def assistant(run: RunContext) -> None:
    """Answer with a tool: a calculator for sums, a slow job, a search in the notes for all else; or
    ask first.
    """
    question = (await run.messages())[-1]["content"]
    asked = question.lower()
    if "everything" in asked:
        await tell_everything(run)
    elif "ask me" in asked:
        await ask_first(run)
    elif "job" in asked:
        await work(run)
    elif calculator.holds_sum(question):
        await calculate(run, question)
    else:
        await look_up(run, question)
    await run.usage(input_tokens=len(question.split()), output_tokens=0)


async def calculate(run: RunContext, question: str) -> None:
    await run.reasoning("There is a sum in it, so the calculator answers. ")
    expression = calculator.find_sum(question)
    async with run.tool("calculator", {"expression": expression}) as call:
        try:
            call.result = calculator.evaluate(expression)
        except (ArithmeticError, ValueError) as error:
            call.error = {"code": "no_result", "message": str(error)}
    if call.error:
        await say(run, f"I could not work out {expression}: {call.error['message']}.")
    else:
        await say(run, f"{expression} = {call.result}")


async def look_up(run: RunContext, question: str) -> None:
    await run.reasoning("The notes may say something about it. ")
    async with run.tool("search", {"query": question}) as call:
        call.result = notes.search(question)
    if call.result:
        await say(run, "The notes say:\n\n" + "\n\n".join(call.result))
    else:
        await say(run, "The notes say nothing about it. Ask about runs, leases, stops or 6 * 7.")


async def tell_everything(run: RunContext) -> None:
    await run.reasoning("All of the notes, then. Slowly enough for something to go wrong. ")
    await say(run, "\n\n".join(notes.paragraphs()), pause=SLOW_WORD_SECONDS)


async def ask_first(run: RunContext) -> None:
    await run.reasoning("That is not for me to decide. Nothing runs until somebody has. ")
    question = {"text": "Shall I order the pizza?", "options": ["Yes", "No"]}
    async with run.tool("approval", question) as call:
        call.result = await run.ask(question, key="pizza")
    if call.result == "Yes":
        number = await run.once("order:pizza", order_number)
        await say(run, f"The pizza is ordered, once: number {number}.")
    else:
        await say(run, "No pizza, then.")


def order_number() -> int:
    return random.randrange(100, 1000)


async def work(run: RunContext) -> None:
    await run.reasoning("This takes a while, so the page is told how far it is. ")
    async with run.tool("slow_job", {"steps": JOB_STEPS}) as call:
        for step in range(1, JOB_STEPS + 1):
            await asyncio.sleep(STEP_SECONDS)
            await run.emit("progress", percent=100 * step // JOB_STEPS)
        call.result = {"steps_done": JOB_STEPS}
    await say(run, f"The job is done: {JOB_STEPS} steps, each of them an event in the journal.")


async def say(run: RunContext, text: str, pause: float = WORD_SECONDS) -> None:
    for word in re.findall(r"\S+\s*", text):
        await run.text(word)
        await asyncio.sleep(pause)


@agent("slow")
async def slow(run: RunContext) -> AsyncIterator[str]:
    """Count the seconds, as many as the message says (60 without a number)."""
    question = (await run.messages())[-1]["content"]
    found = re.search(r"\d+", question)
    for second in range(1, int(found[0]) + 1 if found else 61):
        yield f"{second} "
        await asyncio.sleep(1)


@agent("essay")
async def essay(run: RunContext) -> None:
    """Write as many words as the message says (5000 without a number), at full speed."""
    question = (await run.messages())[-1]["content"]
    found = re.search(r"\d+", question)
    for number in range(1, int(found[0]) + 1 if found else 5001):
        await run.text(f"word{number}{' ' if number % 12 else chr(10)}")


@agent("failing")
async def failing(run: RunContext) -> None:
    """Say a few words, then break."""
    await say(run, "This goes well until ")
    raise RuntimeError("the agent 'failing' did what its name says")


@agent("echo")
def echo(run: BlockingRunContext) -> str:
    """A plain function: it runs in a thread, and what it returns is the reply."""
    return str(run.messages()[-1]["content"])


@agent("smollm2")
def smollm2(run: BlockingRunContext) -> None:
    """Answer with SmolLM2, a language model of 135 million parameters, on one thread."""
    conversation = [
        {"role": message["role"], "content": message["content"]} for message in run.messages()
    ]
    smollm.answer(conversation, run.text)


if real.model_name():

    @agent("model")
    async def with_a_model(run: RunContext) -> None:
        """Answer with a real model, through pydantic-ai."""
        await real.answer(run, real.model_name())
