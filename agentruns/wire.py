"""JSON in and JSON out, whatever a client's headers say about it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import IO, Any

from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.parsers import JSONParser
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request

from .errors import BadRequest

MAX_DEPTH = 100
"""How deep the JSON of a body may nest; Python's and PostgreSQL's own limits are well above."""


class ObjectParser(JSONParser):
    """Takes a JSON object in UTF-8; everything else is a 400."""

    def parse(
        self,
        stream: IO[Any],
        media_type: str | None = None,
        parser_context: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        try:
            body = json.loads(stream.read().decode(), parse_constant=_refuse_constant)
        except RecursionError:
            raise _nested_too_deeply() from None
        except ValueError as error:
            raise BadRequest(f"The body is not JSON: {error}.", "not_json") from None
        if not isinstance(body, dict):
            raise BadRequest("The body must be a JSON object.", "not_an_object")
        if _is_deeper_than(MAX_DEPTH, body):
            raise _nested_too_deeply()
        return body


class AlwaysTheFirst(DefaultContentNegotiation):
    """Answers in the view's own format. Negotiated, an odd `Accept` would be a 406 before anybody
    asked who the client is.
    """

    def select_renderer(
        self,
        request: Request,
        renderers: Any,
        format_suffix: str | None = None,
    ) -> tuple[BaseRenderer, str]:
        renderer = renderers[0]
        return renderer, renderer.media_type


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")


def _nested_too_deeply() -> BadRequest:
    return BadRequest(f"The body nests deeper than {MAX_DEPTH} levels.", "nested_too_deeply")


def _is_deeper_than(limit: int, value: Any) -> bool:
    level = [value]
    for _ in range(limit):
        level = [item for container in level for item in _containers_in(container)]
        if not level:
            return False
    return True


def _containers_in(container: dict[str, Any] | list[Any]) -> list[Any]:
    items = container.values() if isinstance(container, dict) else container
    return [item for item in items if isinstance(item, dict | list)]
