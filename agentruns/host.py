"""Run agents' code.

Coroutines share one event loop, in a thread of its own: code that blocks it costs its siblings
time, never their leases. Plain functions get a thread each.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
import threading
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any

from django.db import connections

from . import tracing
from .context import BlockingRunContext, RunContext, Touch
from .execution import Execution, Outcome

logger = logging.getLogger(__name__)

Returned = Callable[[Execution, Outcome], None]
"""Called, from the thread that ran it, when an execution's code is back."""


class Host:
    """The event loop of the agents, and the threads of those that are plain functions."""

    def __init__(self, *, touch: Touch, on_returned: Returned) -> None:
        self.loop = _new_loop()
        self._touch = touch
        self._on_returned = on_returned
        self._thread = threading.Thread(target=self._run, name="agentruns-agents", daemon=True)
        self._ponged = threading.Event()
        self._ponged.set()
        self._closing = False

    def start(self) -> None:
        self._thread.start()

    def close(self, *, timeout: float) -> None:
        self._closing = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout)

    def execute(self, executions: Sequence[Execution]) -> None:
        """Start the runs' code; each comes back through `on_returned`."""
        by_loop = [execution for execution in executions if _is_asynchronous(execution)]
        if by_loop:  # all in one hand-over: it costs more than to begin one
            self.loop.call_soon_threadsafe(self._create_all, by_loop)
        for execution in executions:
            if not _is_asynchronous(execution):
                self._start_thread(execution)

    def _start_thread(self, execution: Execution) -> None:
        name = f"agentruns-run-{execution.claimed.run_id}"
        try:
            threading.Thread(target=self._call, args=[execution], name=name, daemon=True).start()
        except Exception as error:  # no thread can be had
            self._on_returned(execution, Outcome.of(error))

    def ping(self) -> bool:
        """Ask the loop for a sign of life; whether it gave the last one that was asked for."""
        if not self._ponged.is_set():
            return False
        self._ponged.clear()
        self.loop.call_soon_threadsafe(self._ponged.set)
        return True

    def busy_with(self) -> str:
        """Name of the task that has the loop now."""
        task = asyncio.current_task(self.loop)
        return task.get_name() if task else "a callback"

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        while not self._closing:
            try:
                self.loop.run_forever()
            except BaseException:  # SystemExit in a task of an agent's own goes through the loop
                logger.exception("an agent's own task broke the event loop; it goes on")

    def _create_all(self, executions: Sequence[Execution]) -> None:
        for execution in executions:
            self._create(execution)

    def _create(self, execution: Execution) -> None:
        context = RunContext(execution, self._touch)
        task = self.loop.create_task(_drive(execution, context), name=str(execution))
        task.add_done_callback(functools.partial(self._finished, execution))

        def cancel() -> None:
            self.loop.call_soon_threadsafe(task.cancel)

        # A cancellation that came earlier is seen by `_drive`: a task cancelled before its first
        # step would run nothing at all.
        execution.cancel = cancel

    def _finished(self, execution: Execution, task: asyncio.Task[BaseException | None]) -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception() or task.result()
        self._on_returned(execution, Outcome.of(error))

    def _call(self, execution: Execution) -> None:
        context = BlockingRunContext(execution, self._touch)
        error: BaseException | None = None
        try:
            execution.check()
            context.enter()
            with tracing.run(execution.claimed):
                _reply_blocking(execution.agent.function(context), execution, context)
            context.check_returned()
        except BaseException as raised:
            error = raised
        with contextlib.suppress(Exception):
            connections.close_all()
        self._on_returned(execution, Outcome.of(error))


async def _drive(execution: Execution, context: RunContext) -> BaseException | None:
    """Run the agent's code; what it raised, since nothing of that may reach the loop."""
    try:
        execution.check()
        await context.enter()
        function = execution.agent.function
        with tracing.run(execution.claimed):
            if _is_generator(function):
                await _consume(function(context), context)
            else:
                await _reply(await function(context), execution, context)
        context.check_returned()
    except BaseException as raised:
        return raised
    return None


def _is_asynchronous(execution: Execution) -> bool:
    return _is_coroutine(execution.agent.function) or _is_generator(execution.agent.function)


def _is_coroutine(function: Callable[..., Any]) -> bool:
    return any(map(inspect.iscoroutinefunction, (function, type(function).__call__)))


def _is_generator(function: Callable[..., Any]) -> bool:
    return any(map(inspect.isasyncgenfunction, (function, type(function).__call__)))


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


async def _reply(returned: Any, execution: Execution, context: RunContext) -> None:
    if isinstance(returned, str) and returned and not execution.journal.reply.has_text:
        await context.text(returned)


def _reply_blocking(returned: Any, execution: Execution, context: BlockingRunContext) -> None:
    if inspect.isgenerator(returned):
        with contextlib.closing(returned):
            for item in returned:
                _say_blocking(item, context)
    elif inspect.isawaitable(returned) or inspect.isasyncgen(returned):
        raise TypeError(
            f"agent {execution.agent.name!r} is a plain function that returned "
            f"{type(returned).__name__}; write it as 'async def'"
        )
    elif isinstance(returned, str) and returned and not execution.journal.reply.has_text:
        context.text(returned)


async def _consume(items: AsyncGenerator[Any, None], context: RunContext) -> None:
    # Closed here: its `finally` belongs to the run, not to the garbage collector.
    async with contextlib.aclosing(items):
        async for item in items:
            await _say(item, context)


async def _say(item: Any, context: RunContext) -> None:
    match item:
        case str():
            await context.text(item)
        case {"type": "content_delta", "delta": delta}:
            await context.text(delta, stream=item.get("stream", "text"))
        case {"type": "reasoning_delta", "delta": delta}:
            await context.reasoning(delta, stream=item.get("stream", "reasoning"))
        case {"type": "usage"}:
            await context.usage(**_payload(item))
        case {"type": str(type_)}:
            await context.emit(type_, **_payload(item))
        case _:
            raise _not_an_event(item)


def _say_blocking(item: Any, context: BlockingRunContext) -> None:
    match item:
        case str():
            context.text(item)
        case {"type": "content_delta", "delta": delta}:
            context.text(delta, stream=item.get("stream", "text"))
        case {"type": "reasoning_delta", "delta": delta}:
            context.reasoning(delta, stream=item.get("stream", "reasoning"))
        case {"type": "usage"}:
            context.usage(**_payload(item))
        case {"type": str(type_)}:
            context.emit(type_, **_payload(item))
        case _:
            raise _not_an_event(item)


def _payload(event: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in event.items() if key != "type"}


def _not_an_event(item: Any) -> TypeError:
    return TypeError(
        f"an agent yields text, or an event as a dict with a 'type'; "
        f"it yielded {type(item).__name__}"
    )
