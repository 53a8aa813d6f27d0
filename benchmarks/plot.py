"""Latency and statements of the journal against the number of streaming runs."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

from .results import Result


def plot(results: list[Result], path: Path) -> None:
    """Draw the streams among the results; nothing where none was measured."""
    rounds: dict[str, list[dict[str, Any]]] = next(
        (result.details["rounds"] for result in results if result.bar == "P8"), {}
    )
    if not rounds:
        return
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    by_runs: dict[int, list[dict[str, Any]]] = {}
    for name, some in rounds.items():
        if name != "redis" and name != "few" and not name.startswith("slow"):
            for each in some:
                by_runs.setdefault(each["runs"], []).append(each)
    runs = sorted(by_runs)

    def middle(what: str) -> list[float]:
        return [median(each[what] for each in by_runs[count]) for count in runs]

    figure, (latency, rate) = pyplot.subplots(1, 2, figsize=(9, 3.6))
    for what, label in (
        ("durable_p50", "to the table, p50"),
        ("durable_p99", "to the table, p99"),
        ("interval", "between two flushes"),
    ):
        latency.plot(runs, middle(what), "o-", label=label, markersize=4)
    latency.set(xlabel="streaming runs of one worker", ylabel="ms", ylim=(0, None))
    latency.legend()
    rate.plot(runs, middle("flushes"), "o-", label="measured", markersize=4)
    rate.plot(runs, [4 * count for count in runs], "--", label="a flush of its own for each run")
    rate.set(xlabel="streaming runs of one worker", ylabel="commits/s", yscale="log")
    rate.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)
