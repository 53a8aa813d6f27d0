"""Scripted agents: what they do is written in their run's metadata.

`gate` names a file: the agent goes on when it exists. `trace` names a file to which the agent
appends a line for each thing that it does outside the database, as a tool that sends an e-mail
would.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import os
import sys
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from agentruns import BlockingRunContext, Limits, OutcomeUnknown, Retry, RunContext, agent

logger = logging.getLogger("agentruns.tests")

STEP_SECONDS = 0.01
PATIENCE_SECONDS = 120.0
"""No script outlives its test for longer."""


def trace(run: RunContext | BlockingRunContext, line: str) -> None:
    if path := run.metadata.get("trace"):
        with open(path, "a") as file:
            file.write(f"{time.monotonic():.3f} {line}\n")


def opened(run: RunContext | BlockingRunContext) -> bool:
    return "gate" in run.metadata and Path(run.metadata["gate"]).exists()


@agent("count")
async def count(run: RunContext) -> None:
    """Say the numbers up to `to` (else until the gate opens), one every `pause` seconds."""
    for number in range(run.metadata.get("to", sys.maxsize)):
        if opened(run):
            return
        trace(run, str(number))
        await run.text(f"{number} ")
        await asyncio.sleep(run.metadata.get("pause", STEP_SECONDS))


@agent("repeatable", retry=True)
async def repeatable(run: RunContext) -> None:
    await count(run)


@agent("patient", retry=Retry(attempts=3, backoff=0.1))
async def patient(run: RunContext) -> None:
    await count(run)


@agent("plain")
def plain(run: BlockingRunContext) -> None:
    """As `count`, in a thread."""
    for number in range(run.metadata.get("to", sys.maxsize)):
        if opened(run):
            return
        trace(run, str(number))
        run.text(f"{number} ")
        time.sleep(STEP_SECONDS)


@agent("plain_deaf")
def plain_deaf(run: BlockingRunContext) -> None:
    """Say one thing, then look at nothing until the gate opens."""
    run.text("once")
    block(run)


@agent("yielding")
async def yielding(run: RunContext) -> AsyncIterator[Any]:
    """As `count`, an async generator that needs a moment to close; `wrong`: yields no event."""
    try:
        number = 0
        while not opened(run):
            if run.metadata.get("wrong"):
                yield object()
            yield f"{number} "
            number += 1
            await asyncio.sleep(STEP_SECONDS)
    finally:
        await asyncio.sleep(50 * STEP_SECONDS)
        trace(run, "closed")


@agent("deaf")
async def deaf(run: RunContext) -> None:
    """Swallow every cancellation, and try to go on talking, until the gate opens."""
    with contextlib.suppress(asyncio.CancelledError):
        await run.text("once")
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not opened(run) and time.monotonic() < deadline:
        try:
            await asyncio.sleep(STEP_SECONDS)
            await run.text(" more")
        except asyncio.CancelledError:
            trace(run, "cancelled")
            await asyncio.to_thread(time.sleep, STEP_SECONDS)


@agent("blocking")
async def blocking(run: RunContext) -> None:
    """Keep the event loop of all agents until the gate opens."""
    await run.emit("about_to_block")
    block(run)
    await run.text("unblocked")


def block(run: RunContext | BlockingRunContext) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not opened(run) and time.monotonic() < deadline:
        time.sleep(STEP_SECONDS)


@agent("threaded")
async def threaded(run: RunContext) -> None:
    """Wait for a thread of its own that nothing can interrupt."""
    await run.text("started")
    await asyncio.to_thread(time.sleep, PATIENCE_SECONDS)


@agent("exiting")
async def exiting(run: RunContext) -> None:
    """Return a moment after it was told to, with something to say at the end."""
    try:
        await count(run)
    except asyncio.CancelledError:
        trace(run, "cancelled")
        raise


@agent("lingering")
async def lingering(run: RunContext) -> None:
    """Take `linger` seconds to return when told to."""
    try:
        await count(run)
    except asyncio.CancelledError:
        logger.warning("told to end, taking my time")
        await asyncio.sleep(run.metadata["linger"])
        raise


@agent("reader")
async def reader(run: RunContext) -> str:
    said = await run.messages()
    return " | ".join(message["content"] for message in said)


class Unspeakable(Exception):
    """Neither its text nor its repr can be had."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


def nested(levels: int) -> Any:
    value: Any = "core"
    for _ in range(levels):
        value = [value]
    return value


def recurse() -> None:
    recurse()


async def leave() -> None:
    sys.exit(3)


def fault(kind: str) -> BaseException:
    faults: dict[str, BaseException] = {
        "error": ValueError("postgresql://user:secret@db/name"),
        "exit": SystemExit(3),
        "interrupt": KeyboardInterrupt(),
        "generator_exit": GeneratorExit(),
        "cancelled": asyncio.CancelledError(),
        "unspeakable": Unspeakable(),
        "ten_megabytes": ValueError("x" * 10_000_000),
        "unstorable": ValueError("nul \x00 and half \ud83d"),
        "stop_iteration": StopAsyncIteration(),
        "group": BaseExceptionGroup("many", [ValueError(str(n)) for n in range(1000)]),
    }
    return faults[kind]


@agent("raising")
async def raising(run: RunContext) -> None:
    """Say something, then raise what the metadata names."""
    await run.text("before")
    match run.metadata["kind"]:
        case "recursion":
            recurse()
        case "nested_task":
            await asyncio.create_task(leave())
        case kind:
            raise fault(kind)


@agent("raising_plain")
def raising_plain(run: BlockingRunContext) -> None:
    run.text("before")
    raise fault(run.metadata["kind"])


@agent("unawaited_exit")
async def unawaited_exit(run: RunContext) -> None:
    """Leave a task behind that exits by itself."""
    task = asyncio.create_task(leave())
    await asyncio.sleep(STEP_SECONDS)
    await run.text("still here")
    with contextlib.suppress(SystemExit):
        task.exception()


UNWRITABLE: dict[str, Any] = {
    "nan": float("nan"),
    "infinity": float("inf"),
    "bytes": b"raw",
    "datetime": datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC),
    "set": {1},
    "object": object(),
    "nested": None,
    "huge_int": 10**5000,
    "too_long": "x" * 20_000_000,
}


@agent("emitting")
async def emitting(run: RunContext) -> None:
    """Emit a value that JSON cannot carry, and go on when that was refused."""
    kind = run.metadata["kind"]
    value = nested(100_000) if kind == "nested" else UNWRITABLE[kind]
    await run.text("before")
    try:
        await run.emit("value", value=value)
    except ValueError as error:
        await run.text(f" {type(error).__name__}: {str(error)[:60]}")


@agent("refused")
async def refused(run: RunContext) -> None:
    """Emit a value that JSON carries and PostgreSQL refuses, beside text that is well."""
    await run.text("before")
    sys.set_int_max_str_digits(0)
    async with run.tool("compute") as call:
        call.result = 10**200_000
    await run.text("after")


@agent("odd")
async def odd(run: RunContext) -> None:
    """Say what no text column takes."""
    await run.text("nul \x00, ")
    await run.text("pair \ud83d")
    await run.text("\ude00, ")
    await run.text("half \ud83d")
    await run.emit("odd\x00\ud83d" if run.metadata.get("type") else "odd", key="\x00\ud83d")
    async with run.tool("tool\x00", {"\ud83d": "\x00"}) as call:
        call.result = ["\ude00", 10**400, 1.5]


@agent("tooling")
async def tooling(run: RunContext) -> None:
    """Call a tool that lasts until the gate opens, or its code is cancelled."""
    async with run.tool("slow", {"q": "x"}) as call:
        while not opened(run):
            await asyncio.sleep(STEP_SECONDS)
        call.result = "done"


@agent("side_by_side")
async def side_by_side(run: RunContext) -> None:
    """Two calls at once, the first of which ends last; then wait to be stopped."""
    first = await run.start_tool("first", call_id="c1")
    second = await run.start_tool("second", {"q": "y"}, call_id="c2")
    await first.arguments_delta('{"q": ')
    await first.arguments_delta('"x"}')
    await first.arguments({"q": "x"})
    second.result = 2
    await second.finish()
    try:
        await count(run)
    finally:
        first.error = {"code": "cut_off"}
        with contextlib.suppress(asyncio.CancelledError):
            await run.usage(input_tokens=1)
        await first.finish()


@agent("side_by_side_plain")
def side_by_side_plain(run: BlockingRunContext) -> None:
    first = run.start_tool("first", call_id="c1")
    second = run.start_tool("second", {"q": "y"}, call_id="c2")
    second.result = 2
    second.finish()
    try:
        plain(run)
    finally:
        first.error = {"code": "cut_off"}
        first.finish()


async def charge(run: RunContext) -> dict[str, str]:
    """A side effect, in the trace; where `inside` is asked for, it does not come back at first."""
    trace(run, "charged")
    if run.attempt == 1 and run.metadata["point"] == "inside":
        await stand(run)
    return {"charge": run.idempotency_key("charge:42")}


async def stand(run: RunContext) -> None:
    """Say so, and wait to be killed."""
    await run.text("standing ")
    await asyncio.sleep(PATIENCE_SECONDS)


@agent("charging", retry=True)
async def charging(run: RunContext) -> str:
    """Charge once; the first attempt stands still at the point that the metadata names."""
    first, point = run.attempt == 1, run.metadata["point"]
    if first and point == "before":
        await stand(run)
    done = await run.once("charge:42", charge, run)
    if first and point == "after":
        await stand(run)
    return done["charge"] if done["charge"] == run.idempotency_key("charge:42") else "another"


@agent("hasty", retry=True)
async def hasty(run: RunContext) -> None:
    """Take one step after the other; a second attempt takes each again, from the first."""
    for number in range(run.metadata["steps"]):
        with contextlib.suppress(OutcomeUnknown):
            await run.once(f"step:{number}", trace, run, f"step {number};")
        await run.text(f"{number} ")


@agent("charging_plain")
def charging_plain(run: BlockingRunContext) -> str:
    """Charge twice under one name."""
    results = [run.once("charge:42", charge_plain, run) for _ in range(2)]
    return str(results)


def charge_plain(run: BlockingRunContext) -> tuple[int, int]:
    trace(run, "charged")
    return 4, 2


@agent("flaky", retry=Retry(attempts=3, backoff=0.05, on=(ConnectionError,)))
async def flaky(run: RunContext) -> str:
    """Fail with what the metadata names, at the attempts before `well`."""
    if run.attempt < run.metadata["well"]:
        raise ConnectionRefusedError if run.metadata["kind"] == "connection" else ValueError
    return "at last"


@agent("brief", limits=Limits(run_seconds=1))
async def brief(run: RunContext) -> None:
    await count(run)


@agent("quiet", limits=Limits(silence_seconds=1))
async def quiet(run: RunContext) -> None:
    await stand(run)


@agent("spending", limits=Limits(tokens=100))
async def spending(run: RunContext) -> None:
    """Report ten tokens with each number."""
    for number in range(sys.maxsize):
        await run.text(f"{number} ")
        await run.usage(input_tokens=6, output_tokens=4)


@agent("asking")
async def asking(run: RunContext) -> str:
    """Ask as often as the metadata says, with a step and words before and after each question."""
    for number in range(run.metadata.get("asks", 1)):
        await run.text(f"q{number} ")
        await run.once(f"step:{number}", trace, run, f"step {number};")
        await run.usage(input_tokens=1)
        expires_in = timedelta(seconds=run.metadata.get("expires_in", 3600))
        answer = await run.ask({"number": number}, expires_in=expires_in)
        await run.text(f"{answer} ")
        if run.metadata.get("stands"):
            await stand(run)
    return "said already"


@agent("asking_plain")
def asking_plain(run: BlockingRunContext) -> None:
    run.text("q ")
    run.once("step", trace, run, "step;")
    run.text(f"{run.ask('well?', key='plain')} ")


@agent("asking_yielding")
async def asking_yielding(run: RunContext) -> AsyncIterator[Any]:
    yield "q "
    yield f"{await run.ask('well?')} "


@agent("asking_blocking_yielding")
def asking_blocking_yielding(run: BlockingRunContext) -> Iterator[Any]:
    yield "q "
    yield f"{run.ask('well?')} "


@agent("asking_in_a_tool")
async def asking_in_a_tool(run: RunContext) -> None:
    """Ask inside a tool call, in a task of a group, beside a sibling that would run for long."""

    async def approve() -> None:
        async with run.tool("approve", {"amount": 10}) as call:
            call.result = await run.ask({"approve": 10})
            done.set()

    async def wait() -> None:
        await asyncio.wait_for(done.wait(), PATIENCE_SECONDS)

    done = asyncio.Event()
    await run.text("q ")
    async with asyncio.TaskGroup() as group:
        group.create_task(approve())
        group.create_task(wait())
    await run.text("done ")


@agent("asking_aside")
async def asking_aside(run: RunContext) -> None:
    """Ask in a task that nobody awaits at first."""
    await run.text("q ")
    task = asyncio.create_task(run.ask("well?"))
    await asyncio.sleep(STEP_SECONDS)
    await run.text(f"{await task} ")


@agent("asking_side_by_side")
async def asking_side_by_side(run: RunContext) -> None:
    """Ask in two tool calls at once, beside a third that is cut off by the first question; another
    one comes first each time that the code is called.
    """
    trace(run, "called;")
    called = len(Path(run.metadata["trace"]).read_text().splitlines())

    async def act(name: str, first: bool) -> str:
        if not first:
            await asyncio.sleep(20 * STEP_SECONDS)
        async with run.tool(name, call_id=name) as call:
            if name == "look":
                await asyncio.sleep(20 * STEP_SECONDS)
            call.result = name if name == "look" else await run.ask(name, key=name)
        return str(call.result)

    first = {1: ("look", "a"), 2: ("look", "b")}.get(called, ("a", "b", "look"))
    acts = (act(name, name in first) for name in ("a", "b", "look"))
    await run.text(" ".join(await asyncio.gather(*acts)))


@agent("asking_on_the_way_out")
async def asking_on_the_way_out(run: RunContext) -> None:
    """Ask in a task, and wait for that task also while leaving."""
    await run.text("q ")
    task = asyncio.create_task(run.ask("well?"))
    try:
        await asyncio.wait([task])
    finally:
        await asyncio.gather(task, return_exceptions=True)
    await run.text(f"{task.result()} ")


@agent("asking_in_another_loop")
async def asking_in_another_loop(run: RunContext) -> None:
    await run.text("q ")
    await run.text(f"{await asyncio.to_thread(asyncio.run, run.ask('well?'))} ")


@agent("asking_tidily")
async def asking_tidily(run: RunContext) -> None:
    """Catch every `Exception`, and tidy up in a way that takes an `await`."""
    try:
        await run.text("q ")
        await run.text(f"{await run.ask('well?')} ")
    except Exception:
        trace(run, "caught;")
    finally:
        await asyncio.sleep(STEP_SECONDS)
        with contextlib.suppress(asyncio.CancelledError):
            await run.usage(input_tokens=1)
        trace(run, "tidied;")


@agent("asking_deafly")
async def asking_deafly(run: RunContext) -> None:
    """Swallow the way out, and go on until the gate opens; asked again, say the answer."""
    await run.text("q ")
    try:
        answer = await run.ask("well?")
    except BaseException:
        trace(run, "swallowed;")
        await asyncio.to_thread(block, run)
        return
    await run.text(f"{answer} ")


@agent("asking_late")
async def asking_late(run: RunContext) -> None:
    """Ask when the gate opens."""
    await run.text("q ")
    while not opened(run):
        await asyncio.sleep(STEP_SECONDS)
    await run.ask("well?")


@agent("asking_another")
async def asking_another(run: RunContext) -> None:
    """Ask what differs each time."""
    await run.ask(str(uuid.uuid4()))


@agent("asking_out_of_order")
async def asking_out_of_order(run: RunContext) -> None:
    """Ask under a key that differs each time."""
    await run.ask("well?", key=str(uuid.uuid4()))


@agent("asking_no_more")
async def asking_no_more(run: RunContext) -> None:
    """Ask the first time only."""
    await run.text("q ")
    if not Path(run.metadata["trace"]).exists():
        trace(run, "asked;")
        await run.ask("well?")


@agent("asking_in_a_step")
async def asking_in_a_step(run: RunContext) -> None:
    await run.once("step", run.ask, "well?")


@agent("asking_oddly")
async def asking_oddly(run: RunContext) -> None:
    """Ask what JSON does not carry, or with an event behind it that PostgreSQL refuses."""
    await run.text("q ")
    if run.metadata["kind"] == "refused":
        sys.set_int_max_str_digits(0)
        with contextlib.suppress(asyncio.CancelledError):
            async with run.tool("x") as call:
                call.error = 10**200_000
                raise asyncio.CancelledError
    await run.ask("well?" if run.metadata["kind"] == "refused" else object())


@agent("process")
async def process(run: RunContext) -> str:
    """Tell which process runs it."""
    return str(os.getpid())
