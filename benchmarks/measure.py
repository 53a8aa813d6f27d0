"""Counting: CPU of processes and of the server, percentiles, a counter between processes."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median

import psutil

__all__ = ["Counter", "cpu_of", "median", "percentile", "read_counter", "summary"]


def percentile(values: Iterable[float], percent: float) -> float:
    """Linear between the two nearest ranks."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def summary(values: Sequence[float]) -> dict[str, float]:
    """The figures of a latency, in the unit of the values."""
    return {
        "n": len(values),
        **{f"p{p}": round(percentile(values, p), 3) for p in (50, 90, 99)},
        "max": round(max(values), 3),
    }


def cpu_of(*pids: int) -> float:
    """CPU seconds that these processes and their children, past ones included, have used so far."""
    total = 0.0
    for pid in pids:
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            for member in (process, *process.children(recursive=True)):
                with suppress(psutil.Error):
                    times = member.cpu_times()
                    total += times.user + times.system + times.children_user
                    total += times.children_system
    return total


class Counter:
    """Counts in a file that other processes read while it counts."""

    def __init__(self, path: str | Path) -> None:
        self._count = 0
        with open(path, "w+b") as file:
            file.truncate(8)
            self._map = mmap.mmap(file.fileno(), 8)

    def hit(self) -> None:
        self._count += 1
        struct.pack_into("<q", self._map, 0, self._count)


def read_counter(path: str | Path) -> int:
    with suppress(FileNotFoundError):
        content = Path(path).read_bytes()
        return struct.unpack("<q", content)[0] if len(content) == 8 else 0
    return 0
