"""What a probe of the doctor found."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Literal

Level = Literal["ok", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What a probe found: whether it is well, in a sentence, and what to do if not."""

    probe: str
    level: Level
    sentence: str
    hint: str = ""

    def as_json(self) -> dict[str, str]:
        return asdict(self)


Probe = Callable[[], Iterable[Finding]]
