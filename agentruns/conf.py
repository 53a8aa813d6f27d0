"""The `AGENTRUNS` setting: every name, its default and its bounds.

The only module that reads `django.conf.settings`. Rung modules are given values; they don't read
settings.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

SAME_AS_DATABASE = "same as DATABASE"


@dataclass(frozen=True, slots=True)
class Config:
    """The settings with their defaults. Durations are seconds."""

    DEFAULT_AGENT: str | None = None
    """Agent of a request that names none; None: the only registered one."""
    LEASE_SECONDS: float = 30
    """How long a claim lives without a heartbeat."""
    HEARTBEAT_SECONDS: float = 10
    """How often a worker renews the leases of all its runs."""
    GRACE_SECONDS: float = 30
    """How long past its lease a run is left alone before it is reaped."""
    POLL_SECONDS: float = 10
    """How often an idle worker looks for runs without having been woken."""
    REAP_SECONDS: float = 5
    """Between two sweeps for orphans."""
    STREAM_POLL_SECONDS: float = 1
    """How often watched runs are read while no signal can arrive."""
    FLUSH_SECONDS: float = 0.25
    """The longest that a delta waits in memory before it is written."""
    FLUSH_FLOOR_SECONDS: float = 0.05
    """The shortest time between two writes of deltas, kept while the load is light."""
    KEEPALIVE_SECONDS: float = 15
    """How long a stream stays silent before it sends a keepalive."""
    CONCURRENCY: int = 20
    """Slots of one worker process."""
    DRAIN_SECONDS: float = 25
    """How long a worker that was told to end lets its runs go on."""
    STOP_GRACE_SECONDS: float = 10
    """How long agent code may ignore its cancellation before its run is fenced off."""
    RUN_TIMEOUT_SECONDS: float = 3600
    """The longest that a run may run."""
    ANSWER_TIMEOUT_SECONDS: float = 604_800
    """How long a run waits for a person's answer, where its agent does not say."""
    RETENTION_SECONDS: float = 86400
    """How long the journal and the input of an ended run are kept."""
    MAX_CONTENT_CHARS: int = 100_000
    """The longest message that is taken, in characters; as JSON, also of a question and an answer.
    """
    MAX_QUEUED_PER_CONVERSATION: int = 20
    """How many turns of one conversation may wait."""
    DATABASE: str = "default"
    """Alias of the database that holds the queue."""
    LISTEN_DATABASE: str | None = SAME_AS_DATABASE
    """Alias for the LISTEN connection where DATABASE goes through a pooler; None: never listen,
    poll.
    """

    @property
    def listen_alias(self) -> str | None:
        """The alias to LISTEN on, or None where signals are switched off."""
        return self.DATABASE if self.LISTEN_DATABASE == SAME_AS_DATABASE else self.LISTEN_DATABASE

    @property
    def pooled(self) -> bool:
        """Whether DATABASE is behind a pooler, so that session state cannot be relied on."""
        return self.listen_alias != self.DATABASE


@dataclass(frozen=True, slots=True)
class Problem:
    """A setting that cannot work: which, why, and what to write instead."""

    key: str
    sentence: str
    hint: str


_TEXT = ("DEFAULT_AGENT", "DATABASE", "LISTEN_DATABASE")
_WHOLE = ("CONCURRENCY", "MAX_CONTENT_CHARS", "MAX_QUEUED_PER_CONVERSATION")
_ZERO_ALLOWED = (
    "GRACE_SECONDS",
    "DRAIN_SECONDS",
    "RETENTION_SECONDS",
    "FLUSH_SECONDS",
    "FLUSH_FLOOR_SECONDS",
)
_YEAR = 366 * 86400
_CEILING = {
    "CONCURRENCY": 10_000,
    "MAX_CONTENT_CHARS": 50_000_000,
    "MAX_QUEUED_PER_CONVERSATION": 1_000_000,
}


def problems(given: Mapping[str, Any]) -> Iterator[Problem]:
    """Everything that is wrong with the dict `given`, most basic first."""
    names = [field.name for field in fields(Config)]
    found = False
    for key, value in given.items():
        problem = _unknown(key, names) if key not in names else _wrong_value(key, value)
        if problem is not None:
            found = True
            yield problem
    if not found:
        yield from _wrong_relations(Config(**given))


def _unknown(key: str, names: list[str]) -> Problem:
    close = difflib.get_close_matches(str(key), names, n=1)
    hint = f"Did you mean {close[0]!r}?" if close else f"Known keys: {', '.join(names)}."
    return Problem(str(key), f"AGENTRUNS[{key!r}] is not a setting of agentruns.", hint)


def _wrong_value(key: str, value: Any) -> Problem | None:
    if key in _TEXT:
        return _wrong_text(key, value)
    name = f"AGENTRUNS[{key!r}] is {value!r}"
    kind = int if key in _WHOLE else (int, float)
    what = "a whole number" if key in _WHOLE else "a number of seconds"
    if isinstance(value, bool) or not isinstance(value, kind):
        return Problem(key, f"{name}, which is not {what}.", f"Write {what}.")
    ceiling = _CEILING.get(key, _YEAR)
    if not value <= ceiling:  # NaN and infinity fail here too
        return Problem(
            key,
            f"{name}; the largest possible value is {ceiling}.",
            f"Use at most {ceiling}.",
        )
    if value < 0 or (value == 0 and key not in _ZERO_ALLOWED):
        bound = "0 or more" if key in _ZERO_ALLOWED else "above 0"
        return Problem(key, f"{name}; it must be {bound}.", f"Write {what}, {bound}.")
    return None


def _wrong_text(key: str, value: Any) -> Problem | None:
    name = f"AGENTRUNS[{key!r}] is {value!r}"
    if value is None and key != "DATABASE":
        return None
    if not isinstance(value, str) or not value:
        return Problem(key, f"{name}, which is not a name.", "Write a text that is not empty.")
    if key != "DEFAULT_AGENT" and value != SAME_AS_DATABASE and value not in settings.DATABASES:
        known = ", ".join(map(repr, settings.DATABASES))
        return Problem(key, f"{name}, which is no alias in DATABASES.", f"Use one of {known}.")
    return None


def _wrong_relations(config: Config) -> Iterator[Problem]:
    if config.LEASE_SECONDS <= 2 * config.HEARTBEAT_SECONDS:
        yield Problem(
            "HEARTBEAT_SECONDS",
            f"AGENTRUNS['HEARTBEAT_SECONDS'] is {config.HEARTBEAT_SECONDS:g} and LEASE_SECONDS is "
            f"{config.LEASE_SECONDS:g}: one missed beat would lose the lease.",
            f"Use less than {config.LEASE_SECONDS / 2:g}, or a longer lease.",
        )
    if config.FLUSH_FLOOR_SECONDS > config.FLUSH_SECONDS:
        yield Problem(
            "FLUSH_FLOOR_SECONDS",
            f"AGENTRUNS['FLUSH_FLOOR_SECONDS'] is {config.FLUSH_FLOOR_SECONDS:g}, above "
            f"FLUSH_SECONDS ({config.FLUSH_SECONDS:g}).",
            f"Use at most {config.FLUSH_SECONDS:g}.",
        )


def given() -> Any:
    """The dict as the project wrote it; `{}` where there is none."""
    return getattr(settings, "AGENTRUNS", {})


@cache
def get_config() -> Config:
    """The settings in force.

    Raises `ImproperlyConfigured` with the first problem; `manage.py check` lists all of them.
    """
    values = given()
    if not isinstance(values, Mapping):
        raise ImproperlyConfigured(f"AGENTRUNS must be a dict, not {type(values).__name__}.")
    for problem in problems(values):
        raise ImproperlyConfigured(f"{problem.sentence} {problem.hint}")
    return Config(**values)


def allowed_hosts() -> list[str]:
    """The hosts whose pages may open a WebSocket: `ALLOWED_HOSTS`, as Django completes it."""
    if settings.DEBUG and not settings.ALLOWED_HOSTS:
        return [".localhost", "127.0.0.1", "[::1]"]
    return list(settings.ALLOWED_HOSTS)


def asgi_application() -> str | None:
    """The dotted path of the project's ASGI application; None where it has none."""
    return getattr(settings, "ASGI_APPLICATION", None)


def databases() -> Mapping[str, Mapping[str, Any]]:
    """`DATABASES`, as the project wrote it."""
    return settings.DATABASES


def engine_of(alias: str) -> str:
    """The ENGINE of a database; empty where there is no such alias."""
    return str(settings.DATABASES.get(alias, {}).get("ENGINE", ""))


def middleware_like(base: type) -> type[Any] | None:
    """The project's middleware that is this class, or derived from it."""
    classes = map(import_string, settings.MIDDLEWARE)
    return next((c for c in classes if isinstance(c, type) and issubclass(c, base)), None)


def _forget(*, setting: str, **_: Any) -> None:
    if setting in ("AGENTRUNS", "DATABASES"):
        get_config.cache_clear()


setting_changed.connect(_forget, dispatch_uid="agentruns.conf")
