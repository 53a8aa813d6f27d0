"""What a client of the events route takes: the stream, or a page of JSON."""

from __future__ import annotations

STREAM = "text/event-stream"
JSON = "application/json"


def quality(accept: str, media_type: str) -> tuple[float, int]:
    """How much the header wants the type (0 to 1), and how exactly it names it (0 to 3)."""
    main = media_type.partition("/")[0]
    exactness = {media_type: 3, f"{main}/*": 2, "*/*": 1}
    best = (0.0, 0)
    for item in accept.split(","):
        name, *parameters = (part.strip().lower() for part in item.split(";"))
        if name in exactness and exactness[name] > best[1]:
            best = (_q(parameters), exactness[name])
    return best


def prefers_stream(accept: str) -> bool:
    """Whether a client with this header gets the stream where both forms are served.

    The type that is wanted more wins, then the one that is named; alike, the stream.
    """
    if not accept.strip():
        return True
    stream, json = quality(accept, STREAM), quality(accept, JSON)
    return stream[0] > 0 and stream >= json


def _q(parameters: list[str]) -> float:
    for parameter in parameters:
        if parameter.startswith("q="):
            try:
                return min(1.0, max(0.0, float(parameter[2:])))
            except ValueError:
                return 0.0
    return 1.0
