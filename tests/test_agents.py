"""The registry of agents."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from agentruns import Retry, UnknownAgent, agent
from agentruns import agents as registry


@pytest.fixture(autouse=True)
def empty_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_agents", {})
    with override_settings(AGENTRUNS={}):
        yield


async def one(run: object) -> None: ...


async def two(run: object) -> None: ...


def test_two_agents_of_one_name_are_refused_with_both_places() -> None:
    agent("same")(one)

    with pytest.raises(ImproperlyConfigured, match=r"test_agents\.one and .*test_agents\.two"):
        agent("same")(two)


def test_the_same_function_may_be_registered_again() -> None:
    agent("same")(one)

    assert agent("same")(one) is one


@pytest.mark.parametrize("name", ["", " x", "x" * 201])
def test_a_name_that_cannot_be_one_is_refused(name: str) -> None:
    with pytest.raises(ImproperlyConfigured, match="1 to 200 characters"):
        agent(name)


def test_an_unknown_agent_is_told_the_closest_name() -> None:
    agent("assistant")(one)

    with pytest.raises(UnknownAgent, match="Did you mean 'assistant'"):
        registry.get_agent("assistent")


def test_the_only_agent_is_the_default_and_several_need_a_name() -> None:
    with pytest.raises(UnknownAgent, match="No agent is registered"):
        registry.resolve(None)

    agent("a")(one)
    assert registry.resolve(None).name == "a"

    agent("b")(two)
    with pytest.raises(UnknownAgent, match="Name an agent \\(a, b\\)"):
        registry.resolve(None)
    with override_settings(AGENTRUNS={"DEFAULT_AGENT": "b"}):
        assert registry.resolve(None).name == "b"


def test_a_retry_backs_off_and_gives_up() -> None:
    policy = Retry(attempts=3, backoff=2)

    assert [policy.delay(attempt) for attempt in (1, 2, 3)] == [2, 4, None]
    assert Retry().delay(1) == 0
    with pytest.raises(ValueError, match="1 or more"):
        Retry(attempts=0)
    with pytest.raises(ValueError, match="0 or more"):
        Retry(backoff=-1)
