"""The registry of agents.

An agent is found by name. `agents.py` of every installed app is imported at start-up, so workers
and web processes know the same names.
"""

from __future__ import annotations

import difflib
import inspect
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from django.core.exceptions import ImproperlyConfigured

from .conf import get_config
from .exceptions import UnknownAgent
from .text import bounded, is_number

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Retry:
    """How an agent that is safe to repeat is repeated after its worker was lost, or after it raised
    one of the exceptions of `on`.

    `attempts` is the number of runs of one message in all; `backoff` the seconds before the second,
    doubled for each one after it.
    """

    attempts: int = 2
    backoff: float = 0.0
    on: tuple[type[Exception], ...] = ()

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError(f"Retry.attempts is {self.attempts}; it must be 1 or more")
        if self.backoff < 0:
            raise ValueError(f"Retry.backoff is {self.backoff}; it must be 0 or more seconds")
        given: Any = self.on
        named = isinstance(given, tuple) and all(
            isinstance(kind, type) and issubclass(kind, Exception) for kind in given
        )
        if not named:
            raise ValueError(f"Retry.on is {self.on!r}; it must be a tuple of exception classes")

    def delay(self, attempt: int) -> float | None:
        """Seconds between the end of attempt number `attempt` and the next; None where there is
        none.
        """
        return self.backoff * 2 ** (attempt - 1) if attempt < self.attempts else None


MOST_SECONDS = 366 * 86400
MOST_COUNTED = 10**15


@dataclass(frozen=True, slots=True)
class Limits:
    """What one run may take; it fails when it takes more. None: no limit."""

    run_seconds: float | None = None
    """From its start; below `RUN_TIMEOUT_SECONDS`, which holds for every run."""
    queue_seconds: float | None = None
    """From the moment that it may start until it does; waiting behind an earlier turn of its
    conversation does not count.
    """
    silence_seconds: float | None = None
    """Without an event."""
    tokens: float | None = None
    """`input_tokens` and `output_tokens` of all that `run.usage` reports."""
    cost: float | None = None
    """`cost` of all that `run.usage` reports, in whatever unit."""

    def __post_init__(self) -> None:
        for name, value in self.given().items():
            most = MOST_SECONDS if name.endswith("_seconds") else MOST_COUNTED
            if not is_number(value) or not 0 < value <= most:
                raise ValueError(
                    f"limits.{name} is {bounded(repr(value), 60)}; write a number above 0 and at "
                    f"most {most}, or leave it out"
                )

    @classmethod
    def of(cls, asked: Limits | Mapping[str, Any] | None) -> Limits:
        """The limits of a request. Raises `ValueError` for names and values that are none."""
        if isinstance(asked, Limits):
            return asked
        if not asked:
            return UNLIMITED
        for name in asked:
            if name not in LIMIT_NAMES:
                raise ValueError(
                    f"limits has {bounded(repr(name), 60)}, which is no limit; "
                    f"use {', '.join(LIMIT_NAMES)}"
                )
        return cls(**asked)

    @classmethod
    def kept(cls, row: Mapping[str, Any] | None) -> Limits:
        """The limits that a run's row holds, as far as this release knows them."""
        return cls(**{name: row.get(name) for name in LIMIT_NAMES}) if row else UNLIMITED

    def given(self) -> dict[str, float]:
        """Those that are set, by name."""
        values = ((name, getattr(self, name)) for name in LIMIT_NAMES)
        return {name: value for name, value in values if value is not None}

    def lowered(self, asked: Limits) -> Limits:
        """The lower of each two."""
        if asked == UNLIMITED:
            return self
        own, other = self.given(), asked.given()
        both = {name: min(own[name], other[name]) for name in own.keys() & other.keys()}
        return Limits(**(own | other | both))


LIMIT_NAMES = tuple(limit.name for limit in fields(Limits))
UNLIMITED = Limits()


@dataclass(frozen=True, slots=True)
class Agent:
    """A registered agent: its name, its code, and whether it may be repeated."""

    name: str
    function: Callable[..., Any]
    retry: Retry | None = None
    limits: Limits = Limits()

    @property
    def place(self) -> str:
        code = inspect.unwrap(self.function)
        return f"{code.__module__}.{code.__qualname__}"


_agents: dict[str, Agent] = {}
_lock = threading.Lock()


def agent(
    name: str, *, retry: bool | Retry = False, limits: Limits | None = None
) -> Callable[[F], F]:
    """Register a function as the agent `name`.

    The function takes the run: a coroutine function, an async generator function (it yields text or
    events), or a plain function (run in a thread). `retry=True` declares it safe to repeat: a run
    whose worker was lost gets one linked retry; `Retry(...)` allows more. `limits` is what each run
    may take. Raises `ImproperlyConfigured` where the name is taken by other code.
    """
    if not name or name != name.strip() or len(name) > 200:
        raise ImproperlyConfigured(
            f"An agent's name is a text of 1 to 200 characters without outer spaces, not {name!r}."
        )
    policy = Retry() if retry is True else (retry or None)

    def register(function: F) -> F:
        if not callable(function):
            raise ImproperlyConfigured(f"Agent {name!r} is {function!r}, which cannot be called.")
        new = Agent(name, function, policy, limits or Limits())
        with _lock:
            old = _agents.get(name)
            # The same function again is the same module imported again (a reload), not a clash.
            if old is not None and old.place != new.place:
                raise ImproperlyConfigured(
                    f"Two agents are named {name!r}: {old.place} and {new.place}. "
                    "Rename one of them."
                )
            _agents[name] = new
        return function

    return register


def get_agent(name: str) -> Agent:
    """The agent of that name; raises `UnknownAgent` with the closest names."""
    try:
        return _agents[name]
    except KeyError:
        close = difflib.get_close_matches(name, _agents, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise UnknownAgent(f"There is no agent named {name!r}.{hint}") from None


def agent_names() -> list[str]:
    """The names of all registered agents, sorted."""
    return sorted(_agents)


def declared_limits() -> dict[str, Limits]:
    """The limits of all registered agents that have some, by name."""
    with _lock:
        return {agent.name: agent.limits for agent in _agents.values() if agent.limits.given()}


def resolve(name: str | None) -> Agent:
    """The agent of a request: the named one, else `DEFAULT_AGENT`, else the only one. Raises
    `UnknownAgent`.
    """
    chosen = name if name is not None else get_config().DEFAULT_AGENT
    if chosen is not None:
        return get_agent(chosen)
    if len(_agents) == 1:
        return next(iter(_agents.values()))
    if not _agents:
        raise UnknownAgent("No agent is registered. Write one in an installed app's agents.py.")
    raise UnknownAgent(
        f"Name an agent ({', '.join(agent_names())}), or set AGENTRUNS['DEFAULT_AGENT']."
    )
