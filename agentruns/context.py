"""What agent code is given: the run, with the verbs to say something.

Every verb looks at the stop flag first, so that code in a tight loop hears a stop too.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import Any
from uuid import UUID

from . import db, questions, steps, tracing
from .exceptions import QuestionChanged, RunStopped, Superseded
from .execution import MAX_WAITING_CHARS, Cause, Execution
from .journal import CONTRACT_TYPES, TOOL_TYPES
from .models import Message
from .text import check_name, unstorable

Touch = Callable[..., None]
"""`Writer.touch`: there is something to store."""

YIELD_SECONDS = 0.002
"""How long one agent's emitting may keep the event loop from the others."""
MAX_TYPE_CHARS = 100

_step: ContextVar[str | None] = ContextVar("agentruns_step", default=None)
"""Name of the step of `run.once` whose function is being called."""


@contextmanager
def _inside(step: str) -> Iterator[None]:
    entered = _step.set(step)
    try:
        yield
    finally:
        _step.reset(entered)


class Call:
    """A tool call under way. Set `result`, or `error` (an object that readers may see)."""

    def __init__(self, call_id: str, name: str) -> None:
        self.call_id = call_id
        self.name = name
        self.result: Any = None
        self.error: Any = None
        self.has_failed = False

    def finished(self) -> dict[str, Any]:
        """Payload of `tool_call_finished`."""
        outcome = {"error": self.error} if self.error is not None else {"result": self.result}
        return {"call_id": self.call_id, "name": self.name, **outcome}

    def record(self, error: BaseException) -> None:
        if self.error is None:
            self.error = {"code": "tool_error", "message": type(error).__name__}


class BaseRunContext:
    """The facts of the run, and the steps that both forms of the context share."""

    def __init__(self, execution: Execution, touch: Touch) -> None:
        claimed = execution.claimed
        self.id: UUID = claimed.run_id
        self.conversation_id: UUID = claimed.conversation_id
        self.user_id: Any = claimed.user_id
        self.agent: str = claimed.agent
        self.metadata: dict[str, Any] = claimed.metadata
        self.attempt: int = claimed.attempt
        self._execution = execution
        self._touch = touch
        self._unkeyed = 0
        self._calls = 0

    @property
    def cancel_requested(self) -> bool:
        """Whether a stop was asked for."""
        return self._execution.cancel_requested

    def _say(self, type_: str, key: str, name: str, text: str) -> None:
        if not isinstance(text, str):
            raise TypeError(f"a {type_} takes a text, not {type(text).__name__}")
        self._execution.check()
        self._execution.heard = time.monotonic()
        if self._is_repeated_delta(type_, name):
            return
        first = self._execution.journal.delta(type_, key, name, text)
        self._touch(self._execution, urgent=first)

    def _add(self, type_: str, payload: Mapping[str, Any]) -> int:
        self._execution.check()
        self._execution.heard = time.monotonic()
        if self._is_repeated(type_, payload):
            return self._execution.journal.stored_to
        seq = self._execution.journal.add(type_, payload)
        self._touch(self._execution, urgent=True)
        return seq

    def _add_fact(self, type_: str, payload: Mapping[str, Any]) -> int:
        """As `_add`; what has happened already is journaled also where code was told to end."""
        try:
            return self._add(type_, payload)
        except RunStopped:
            self._add_last(type_, payload)
            raise

    def _add_usage(self, counts: Mapping[str, float]) -> int:
        repeated = self._repeats
        seq = self._add_fact("usage", counts)
        if not repeated:
            self._execution.consume(counts)
        return seq

    def _add_last(self, type_: str, payload: Mapping[str, Any]) -> None:
        """Journal what code that is being cancelled leaves behind; nobody waits for it. Code that
        is left for an answer is called again, and leaves nothing.
        """
        execution = self._execution
        if execution.cause is Cause.ASKED or self._is_repeated(type_, payload):
            return
        if not execution.ending_composed and not execution.ended:
            execution.journal.add(type_, payload)
            self._touch(execution)

    @property
    def _repeats(self) -> bool:
        """Whether the code, called again, is before the answer: what it says there is journaled
        already.
        """
        return self._execution.replays_to is not None

    def _is_repeated(self, type_: str, payload: Mapping[str, Any]) -> bool:
        """Whether the event is journaled already. Calls that run side by side come to the answer in
        any order: theirs are known by their ids, wherever the code is.
        """
        if type_ in TOOL_TYPES:
            return self._execution.repeats_call(type_, payload["call_id"])
        return self._repeats

    def _is_repeated_delta(self, type_: str, name: str) -> bool:
        if type_ != "tool_call_delta":
            return self._repeats
        execution = self._execution
        return execution.knows_call(name) and (
            self._repeats or execution.will_repeat("tool_call_arguments", name)
        )

    @property
    def _in_order(self) -> bool:
        """Whether this is the agent's own task or thread, whose questions come in one order."""
        raise NotImplementedError

    def _question(
        self, question: Any, key: str | None, expires_in: timedelta | None
    ) -> questions.Question:
        self._execution.check()
        if (step := _step.get()) is not None:
            raise RuntimeError(
                f"run.ask() was called inside step {step!r}, which would be cut off and its "
                "outcome unknown; ask outside of run.once()"
            )
        if key is None:
            self._unkeyed += 1
            key = str(self._unkeyed)
        return questions.checked(question, key, expires_in)

    def _passed(self, question: questions.Question, answer: questions.Answer | None) -> bool:
        """Whether the code goes on with this answer; otherwise the run waits for one."""
        execution = self._execution
        if answer is not None:
            if question.key == execution.replays_to:
                execution.replays_to = None
            return True
        if execution.replays_to is not None and self._in_order:
            raise QuestionChanged(
                f"Called again after question {execution.replays_to!r} was answered, the agent "
                f"asks {question.key!r} first; it must ask the same questions in the same order."
            )
        execution.ask(question)
        return False

    def check_returned(self) -> None:
        """Raise `QuestionChanged` where the code came back without asking again what was answered:
        all that it said is lost.
        """
        execution = self._execution
        if execution.replays_to is not None and execution.cause is None:
            raise QuestionChanged(
                f"Called again after question {execution.replays_to!r} was answered, the agent "
                "returned without asking it."
            )

    def _new_call(self, name: str, call_id: str | None) -> Call:
        """A call; its id is the same when the code is called again after an answer."""
        self._calls += 1
        made = uuid.uuid5(self.id, str(self._calls)).hex
        return Call(call_id or f"call_{made}", name)

    @property
    def _is_full(self) -> bool:
        return self._execution.journal.waiting_chars > MAX_WAITING_CHARS

    def idempotency_key(self, name: str) -> str:
        """A key for a provider: the same in every attempt at this run's message, and in no other
        message's.
        """
        check_name(name, "a step's name")
        return steps.key(self._execution.claimed.user_message_id, name)

    def _attempt(self, name: str) -> steps.Attempt:
        check_name(name, "a step's name")
        self._execution.check()
        claimed = self._execution.claimed
        return steps.Attempt(claimed.fence, claimed.user_message_id, name)

    def _check_recording(self) -> None:
        """A step that was done is recorded also where the run was told to end."""
        if self._execution.ended:
            raise RunStopped("the run has ended")

    def _history(self) -> list[dict[str, Any]]:
        own = self._execution.claimed.user_message_id
        said = Message.objects.filter(conversation_id=self.conversation_id).transcript()
        rows = list(said.values("pk", "role", "content", "parts"))
        rows.sort(key=lambda row: row["pk"] == own)
        return [{key: row[key] for key in ("role", "content", "parts")} for row in rows]


def checked_event(type_: str, payload: Mapping[str, Any]) -> None:
    """Raise `ValueError` where the event is not one that agents may name themselves."""
    if not 1 <= len(type_) <= MAX_TYPE_CHARS:
        raise ValueError(
            f"an event's type is a text of 1 to {MAX_TYPE_CHARS} characters, not {type_!r}"
        )
    if (found := unstorable(type_)) is not None:
        raise ValueError(f"the event type {type_!r} contains {found}, which cannot be stored")
    if type_ in CONTRACT_TYPES:
        raise ValueError(f"the event type {type_!r} is written by agentruns; use another name")
    for key in ("type", "seq"):
        if key in payload:
            raise ValueError(
                f"event {type_!r} has a key {key!r}, which every event has already; "
                "use another name"
            )


class RunContext(BaseRunContext):
    """The run, for coroutine and async generator agents."""

    def __init__(self, execution: Execution, touch: Touch) -> None:
        super().__init__(execution, touch)
        self._yielded = time.monotonic()
        self._task: asyncio.Task[Any] | None = None

    async def enter(self) -> None:
        """Before the code is called, in its task: look up what the run had said before."""
        self._task = asyncio.current_task()
        if not self._execution.has_past:
            self._execution.remember(await self._read(questions.past_of, self.id))

    @property
    def _in_order(self) -> bool:
        return self._task is asyncio.current_task()

    async def messages(self) -> list[dict[str, Any]]:
        """The transcript as `{"role", "content", "parts"}`, this turn's message last."""
        history: list[dict[str, Any]] = await self._read(self._history)
        return history

    async def ask(
        self, question: Any, /, *, key: str | None = None, expires_in: timedelta | None = None
    ) -> Any:
        """Ask a person; the answer.

        The first time, the run gives up its worker and waits: this call does not return. When the
        question is answered the agent is called again from its start, and this call gives the
        answer. `key` tells the questions of one message apart, by default the number of the call.
        Unanswered after `expires_in` (`ANSWER_TIMEOUT_SECONDS`), the run fails with
        `input_expired`. Raises `QuestionChanged` where another question was answered under the key.
        """
        asked = self._question(question, key, expires_in)
        user_message_id = self._execution.claimed.user_message_id
        answer = await self._read(questions.find, user_message_id, asked)
        if not self._passed(asked, answer):
            self._leave()
        return answer.value

    def _leave(self) -> None:
        """End the code: in its own task by raising, which leaves an `await` in a `finally` alone;
        from another task, which the agent may wait for on its way out, the agent's as well.
        """
        if not self._in_order:
            self._execution.cancel()
        self._execution.check()

    async def _read(self, verb: Callable[..., Any], *args: Any) -> Any:
        return await self._retried(self._execution.check, verb, *args)

    async def _retried(
        self, check: Callable[[], None], verb: Callable[..., Any], *args: Any
    ) -> Any:
        backoff = db.Backoff()
        while True:
            check()
            try:
                return await db.in_thread(verb, *args)
            except db.CONNECTION_TROUBLE:  # a restart of the database is no failure of the agent
                await asyncio.sleep(backoff.next())

    async def once(
        self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Any:
        """Call the function, or give what it gave when an earlier attempt at the same message
        called it under this name.

        The result is what JSON makes of it. Raises `OutcomeUnknown` where the function was begun
        and is not known to have come back: it is not called again.
        """
        attempt = self._attempt(name)
        try:
            done = await self._recorded(steps.begin, attempt)
            self._execution.check()
        except asyncio.CancelledError:  # a stop, before the step was called
            await self._recorded(steps.withdraw, attempt)
            raise
        if done is not None:
            return done.result
        with _inside(name):
            result = function(*args, **kwargs)
            if inspect.isawaitable(result):
                result = await result
        result = steps.storable(name, result)
        await self._recorded(steps.finish, attempt, result)
        return result

    async def _recorded(self, verb: Callable[..., Any], *args: Any) -> Any:
        """Call the verb to its end, although the run is told to end meanwhile."""
        recording = asyncio.ensure_future(self._record(verb, *args))
        try:
            return await asyncio.shield(recording)
        except asyncio.CancelledError:
            await recording
            raise

    async def _record(self, verb: Callable[..., Any], *args: Any) -> Any:
        try:
            return await self._retried(self._check_recording, verb, *args)
        except Superseded:
            raise RunStopped("the run has ended") from None

    async def text(self, text: str, *, stream: str = "text") -> None:
        """Say something: a `content_delta`, merged with those around it and stored within
        `FLUSH_SECONDS`.
        """
        self._say("content_delta", "stream", stream, text)
        await self._breathe()

    async def reasoning(self, text: str, *, stream: str = "reasoning") -> None:
        """Think aloud: a `reasoning_delta`."""
        self._say("reasoning_delta", "stream", stream, text)
        await self._breathe()

    async def emit(self, type_: str, /, **payload: Any) -> None:
        """Append an event of the agent's own type; returns when it is stored.

        Raises `ValueError` for the types and keys of agentruns and for values that JSON cannot
        carry.
        """
        checked_event(type_, payload)
        await self._write(type_, payload)

    async def usage(self, **counts: float) -> None:
        """Report what the model consumed since the last report, such as `input_tokens` and
        `output_tokens`. It is kept also where the run was told to end; then `RunStopped` is raised.
        """
        await self._stored(self._add_usage(counts))

    async def checkpoint(self) -> None:
        """Let other agents run; raises `RunStopped` where this run is to end."""
        await asyncio.sleep(0)
        self._execution.check()

    @asynccontextmanager
    async def tool(
        self, name: str, arguments: Any = None, *, call_id: str | None = None
    ) -> AsyncIterator[ToolCall]:
        """Journal a tool call: its start now, its end with the block's. An exception is recorded by
        its class name and raised again.
        """
        call = await self.start_tool(name, arguments, call_id=call_id)
        try:
            with tracing.tool(name, call.call_id):
                yield call
        except BaseException as error:
            call.record(error)
            if isinstance(error, Exception) and self._execution.cause is None:
                await self._write("tool_call_finished", call.finished())
            else:
                self._add_last("tool_call_finished", call.finished())
            raise
        await self._write("tool_call_finished", call.finished())

    async def start_tool(
        self, name: str, arguments: Any = None, *, call_id: str | None = None
    ) -> ToolCall:
        """Journal the start of a call whose end is not the end of a block, such as one of several
        that run side by side; `await call.finish()` journals its end.
        """
        call = ToolCall(self, self._new_call(name, call_id))
        started = {"call_id": call.call_id, "name": name, "arguments": arguments}
        await self._write("tool_call_started", started)
        return call

    async def _write(self, type_: str, payload: Mapping[str, Any]) -> None:
        seq = self._add(type_, payload)
        await self._stored(seq)

    async def _stored(self, seq: int) -> None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()

        def settle(stored: bool) -> None:
            if not future.done():
                future.set_result(stored)

        def hand_over(stored: bool) -> None:
            loop.call_soon_threadsafe(settle, stored)

        self._execution.when_stored(seq, hand_over)
        if not await future:
            self._execution.check()
            raise RunStopped("the run has ended")

    async def _breathe(self) -> None:
        if self._is_full:
            self._touch(self._execution, urgent=True)
            await self._stored(self._execution.journal.next_seq - 1)
        elif time.monotonic() - self._yielded > YIELD_SECONDS:
            await asyncio.sleep(0)
            self._yielded = time.monotonic()


class ToolCall(Call):
    """A tool call under way in a coroutine agent."""

    def __init__(self, run: RunContext, call: Call) -> None:
        super().__init__(call.call_id, call.name)
        self._run = run

    async def arguments_delta(self, text: str) -> None:
        """A piece of the arguments, as the model streams them."""
        self._run._say("tool_call_delta", "call_id", self.call_id, text)
        await self._run._breathe()

    async def arguments(self, arguments: Any) -> None:
        """The arguments, whole, where they were streamed."""
        await self._run._write(
            "tool_call_arguments", {"call_id": self.call_id, "arguments": arguments}
        )

    async def finish(self) -> None:
        """Journal the end of a call from `start_tool`: with `error` where it is set, else with
        `result`; also where the run was told to end.
        """
        await self._run._stored(self._run._add_fact("tool_call_finished", self.finished()))


class BlockingRunContext(BaseRunContext):
    """The run, for plain functions: the same verbs, blocking."""

    def __init__(self, execution: Execution, touch: Touch) -> None:
        super().__init__(execution, touch)
        self._thread: int | None = None

    def enter(self) -> None:
        self._thread = threading.get_ident()
        if not self._execution.has_past:
            self._execution.remember(self._read(questions.past_of, self.id))

    @property
    def _in_order(self) -> bool:
        return self._thread == threading.get_ident()

    def messages(self) -> list[dict[str, Any]]:
        history: list[dict[str, Any]] = self._read(self._history)
        return history

    def ask(
        self, question: Any, /, *, key: str | None = None, expires_in: timedelta | None = None
    ) -> Any:
        asked = self._question(question, key, expires_in)
        user_message_id = self._execution.claimed.user_message_id
        answer = self._read(questions.find, user_message_id, asked)
        if not self._passed(asked, answer):
            self._execution.check()
        return answer.value

    def _read(self, verb: Callable[..., Any], *args: Any) -> Any:
        return self._retried(self._execution.check, verb, *args)

    def _retried(self, check: Callable[[], None], verb: Callable[..., Any], *args: Any) -> Any:
        backoff = db.Backoff()
        while True:
            check()
            try:
                return verb(*args)
            except db.CONNECTION_TROUBLE:
                db.connection().close_if_unusable_or_obsolete()
                time.sleep(backoff.next())

    def once(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        attempt = self._attempt(name)
        if db.connection().in_atomic_block:
            raise RuntimeError(
                f"step {name!r}: run.once() commits before and after the step; "
                "call it outside of transaction.atomic()"
            )
        done = self._recorded(steps.begin, attempt)
        if done is not None:
            return done.result
        with _inside(name):
            result = steps.storable(name, function(*args, **kwargs))
        self._recorded(steps.finish, attempt, result)
        return result

    def _recorded(self, verb: Callable[..., Any], *args: Any) -> Any:
        try:
            return self._retried(self._check_recording, verb, *args)
        except Superseded:
            raise RunStopped("the run has ended") from None

    def text(self, text: str, *, stream: str = "text") -> None:
        self._say("content_delta", "stream", stream, text)
        self._breathe()

    def reasoning(self, text: str, *, stream: str = "reasoning") -> None:
        self._say("reasoning_delta", "stream", stream, text)
        self._breathe()

    def emit(self, type_: str, /, **payload: Any) -> None:
        checked_event(type_, payload)
        self._write(type_, payload)

    def usage(self, **counts: float) -> None:
        self._stored(self._add_usage(counts))

    def checkpoint(self) -> None:
        self._execution.check()

    @contextmanager
    def tool(
        self, name: str, arguments: Any = None, *, call_id: str | None = None
    ) -> Iterator[BlockingToolCall]:
        call = self.start_tool(name, arguments, call_id=call_id)
        try:
            with tracing.tool(name, call.call_id):
                yield call
        except BaseException as error:
            call.record(error)
            if isinstance(error, Exception) and self._execution.cause is None:
                self._write("tool_call_finished", call.finished())
            else:
                self._add_last("tool_call_finished", call.finished())
            raise
        self._write("tool_call_finished", call.finished())

    def start_tool(
        self, name: str, arguments: Any = None, *, call_id: str | None = None
    ) -> BlockingToolCall:
        call = BlockingToolCall(self, self._new_call(name, call_id))
        started = {"call_id": call.call_id, "name": name, "arguments": arguments}
        self._write("tool_call_started", started)
        return call

    def _write(self, type_: str, payload: Mapping[str, Any]) -> None:
        self._stored(self._add(type_, payload))

    def _stored(self, seq: int) -> None:
        done = threading.Event()
        answer: list[bool] = []

        def settle(stored: bool) -> None:
            answer.append(stored)
            done.set()

        self._execution.when_stored(seq, settle)
        done.wait()
        if not answer[0]:
            self._execution.check()
            raise RunStopped("the run has ended")

    def _breathe(self) -> None:
        if self._is_full:
            self._touch(self._execution, urgent=True)
            self._stored(self._execution.journal.next_seq - 1)


class BlockingToolCall(Call):
    """A tool call under way in a plain function."""

    def __init__(self, run: BlockingRunContext, call: Call) -> None:
        super().__init__(call.call_id, call.name)
        self._run = run

    def arguments_delta(self, text: str) -> None:
        self._run._say("tool_call_delta", "call_id", self.call_id, text)
        self._run._breathe()

    def arguments(self, arguments: Any) -> None:
        self._run._write("tool_call_arguments", {"call_id": self.call_id, "arguments": arguments})

    def finish(self) -> None:
        self._run._stored(self._run._add_fact("tool_call_finished", self.finished()))
