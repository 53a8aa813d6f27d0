"""The setting: what cannot work is said with its key, its value and the bound."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from agentruns.checks import settings_can_work
from agentruns.conf import Config, get_config, problems


def test_the_defaults_have_no_problem() -> None:
    assert list(problems({})) == []
    assert Config().LEASE_SECONDS == 30
    assert Config().listen_alias == "default"
    assert not Config().pooled


@pytest.mark.parametrize(
    ("given", "key", "words"),
    [
        ({"LEASE_SECOND": 3}, "LEASE_SECOND", "Did you mean 'LEASE_SECONDS'"),
        ({"XYZ": 3}, "XYZ", "Known keys"),
        ({"LEASE_SECONDS": "30"}, "LEASE_SECONDS", "a number of seconds"),
        ({"LEASE_SECONDS": True}, "LEASE_SECONDS", "a number of seconds"),
        ({"LEASE_SECONDS": 0}, "LEASE_SECONDS", "above 0"),
        ({"LEASE_SECONDS": -1}, "LEASE_SECONDS", "above 0"),
        ({"LEASE_SECONDS": float("nan")}, "LEASE_SECONDS", "largest possible"),
        ({"LEASE_SECONDS": float("inf")}, "LEASE_SECONDS", "largest possible"),
        ({"CONCURRENCY": 2.5}, "CONCURRENCY", "a whole number"),
        ({"CONCURRENCY": 0}, "CONCURRENCY", "above 0"),
        ({"GRACE_SECONDS": -1}, "GRACE_SECONDS", "0 or more"),
        ({"DATABASE": "nope"}, "DATABASE", "no alias in DATABASES"),
        ({"DATABASE": None}, "DATABASE", "not a name"),
        ({"LISTEN_DATABASE": "nope"}, "LISTEN_DATABASE", "no alias in DATABASES"),
        ({"DEFAULT_AGENT": 3}, "DEFAULT_AGENT", "not a name"),
        ({"LEASE_SECONDS": 20}, "HEARTBEAT_SECONDS", "Use less than 10"),
        ({"HEARTBEAT_SECONDS": 15}, "HEARTBEAT_SECONDS", "Use less than 15"),
        ({"FLUSH_FLOOR_SECONDS": 1}, "FLUSH_FLOOR_SECONDS", "Use at most 0.25"),
    ],
)
def test_a_setting_that_cannot_work_is_named_with_its_bound(
    given: dict[str, Any], key: str, words: str
) -> None:
    found = [problem for problem in problems(given) if problem.key == key]

    assert found
    assert words in f"{found[0].sentence} {found[0].hint}"


@pytest.mark.parametrize("given", [{"GRACE_SECONDS": 0}, {"LISTEN_DATABASE": None}])
def test_zero_and_none_are_values_where_they_mean_something(given: dict[str, Any]) -> None:
    assert list(problems(given)) == []


def test_a_wrong_setting_is_a_check_error_and_refused_at_use() -> None:
    with override_settings(AGENTRUNS={"LEASE_SECONDS": 1, "NOPE": 2}):
        errors = list(settings_can_work())
        with pytest.raises(ImproperlyConfigured, match="NOPE"):
            get_config()

    assert {error.id for error in errors} == {"agentruns.E002"}


def test_settings_that_change_are_read_again() -> None:
    with override_settings(AGENTRUNS={"CONCURRENCY": 3}):
        assert get_config().CONCURRENCY == 3
    assert get_config().CONCURRENCY != 3


def test_a_setting_that_is_no_dict_is_refused() -> None:
    with (
        override_settings(AGENTRUNS=[("CONCURRENCY", 3)]),
        pytest.raises(ImproperlyConfigured, match="must be a dict"),
    ):
        get_config()
