"""The guides say what the code says."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

import agentruns
from agentruns import doctor, metrics
from agentruns.conf import SAME_AS_DATABASE, Config
from agentruns.exposition import QueueCollector
from agentruns.finalize import MESSAGES

PACKAGE = Path(agentruns.__file__).parent
DOCS = PACKAGE.parent / "docs"
OPERATIONS = (DOCS / "operations.md").read_text()
ROW = re.compile(r"^\| `(\w+)` \| (.+?) \| (.+) \|$", re.MULTILINE)


def written(default: object) -> str:
    if default == SAME_AS_DATABASE:
        return "same as `DATABASE`"
    return f"`{json.dumps(default)}`" if isinstance(default, str) else f"`{default}`"


def test_the_settings_reference_has_every_key_with_its_default_in_order() -> None:
    rows = ROW.findall((DOCS / "settings.md").read_text())

    assert [(key, default) for key, default, _ in rows] == [
        (key.name, written(key.default)) for key in fields(Config)
    ]


def test_every_reason_is_in_the_operations_guide() -> None:
    source = (PACKAGE / "why.py").read_text()
    reasons = set(re.findall(r'return "([a-z_]+)",', source))
    assert len(reasons) >= 20

    assert {reason for reason in reasons if f"`{reason}`" not in OPERATIONS} == set()


def test_every_failure_code_is_in_the_operations_guide() -> None:
    assert {code for code in MESSAGES if f"| `{code}` |" not in OPERATIONS} == set()


def test_every_probe_is_in_the_operations_guide() -> None:
    probes = {"configuration", "database", *doctor.PROBES}

    assert {probe for probe in probes if f"| {probe} |" not in OPERATIONS} == set()


def own_metrics() -> set[str]:
    assert metrics.enabled
    return {
        family.name + ("_total" if family.type == "counter" else "")
        for family in REGISTRY.collect()
        if family.name.startswith("agentruns_")
    }


@pytest.mark.django_db(transaction=True)
def test_every_metric_is_in_the_guide_and_on_the_dashboard() -> None:
    known = own_metrics() | {family.name for family in QueueCollector().collect()}
    board = json.loads((DOCS / "grafana-dashboard.json").read_text())
    shown = {
        name
        for panel in board["panels"]
        for target in panel["targets"]
        for name in re.findall(r"agentruns_\w+", target["expr"])
    }

    assert {name for name in known if name not in OPERATIONS} == set()
    assert {re.sub(r"_bucket$", "", name) for name in shown} <= known


def test_every_option_of_runworker_is_in_a_guide() -> None:
    source = (PACKAGE / "management/commands/runworker.py").read_text()
    options = set(re.findall(r'"(--[a-z-]+)"', source)) - {"--concurrency", "--agents"}
    guides = OPERATIONS + (DOCS / "deployment.md").read_text()

    assert {option for option in options if option not in guides} == set()
