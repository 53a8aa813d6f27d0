"""The bars, what was measured against them, and the table."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .server import Server

OUT = Path(__file__).resolve().parent / "out"


@dataclass(frozen=True, slots=True)
class Result:
    """One bar and what came out: both texts are shown, the booleans decide."""

    bar: str
    what: str
    must: str
    good: str
    measured: str
    meets_must: bool | None
    meets_good: bool | None
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        if self.meets_must is None:
            return ""
        return "good" if self.meets_good else "must" if self.meets_must else "MISSED"


def at_most(
    bar: str,
    what: str,
    value: float,
    must: float,
    good: float,
    *,
    unit: str = "×",
    shown: str | None = None,
    **details: Any,
) -> Result:
    bounds = f"≤ {must:g}{unit}", f"≤ {good:g}{unit}"
    verdicts = value <= must, value <= good
    return Result(bar, what, *bounds, shown or f"{value:.3g}{unit}", *verdicts, details)


def at_least(bar: str, what: str, value: float, must: float, good: float, **details: Any) -> Result:
    """As `at_most`, the other way round; in times."""
    verdicts = value >= must, value >= good
    return Result(bar, what, f"≥ {must:g}×", f"≥ {good:g}×", f"{value:.3g}×", *verdicts, details)


def figure(bar: str, what: str, measured: str, **details: Any) -> Result:
    """A figure without a bar."""
    return Result(bar, what, "", "", measured, None, None, details)


def table(results: list[Result]) -> str:
    """The results as a Markdown table."""
    rows = [("", "what", "must", "good", "measured", "")]
    rows += [(r.bar, r.what, r.must, r.good, r.measured, r.verdict) for r in results]
    widths = [max(len(row[column]) for row in rows) for column in range(6)]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in rows]
    lines.insert(1, "| " + " | ".join("-" * width for width in widths) + " |")
    return "\n".join(lines)


def save(results: list[Result], name: str, **facts: Any) -> Path:
    OUT.mkdir(exist_ok=True)
    path = OUT / f"{name}.json"
    path.write_text(json.dumps({**facts, "results": [asdict(r) for r in results]}, indent=1))
    return path


def run_alone(name: str, run: Callable[..., list[Result]]) -> None:
    """The command line of one benchmark."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the usual size")
    options = parser.parse_args()
    began = time.time()
    with Server() as server:
        results = run(server, rounds=options.rounds, scale=options.scale)
        save(results, name, server=server.version, began=began, seconds=time.time() - began)
    print(table(results))
