"""Errors as the SDKs read them: `{"detail": sentence}`, 422 for what is wrong with a body."""

from __future__ import annotations

from typing import Any

from rest_framework import status
from rest_framework.exceptions import APIException, NotFound
from rest_framework.response import Response

from ...exceptions import UnknownAgent


class Invalid(APIException):
    """422 for a field of the body or query."""

    status_code = status.HTTP_422_UNPROCESSABLE_ENTITY

    def __init__(self, field: str, sentence: str) -> None:
        super().__init__(f"{field}: {sentence}", "invalid")


def unsupported(field: str, way_out: str) -> Invalid:
    return Invalid(field, f"not supported here. {way_out}")


class Busy(APIException):
    """409 for `multitask_strategy: "reject"`."""

    status_code = status.HTTP_409_CONFLICT


def thread_not_found() -> NotFound:
    return NotFound("There is no such thread.", "thread_not_found")


def reshaped(error: Exception, response: Response) -> Response:
    """The native answer to this error, in this wire's shape."""
    if isinstance(error, UnknownAgent):
        response.status_code = status.HTTP_404_NOT_FOUND
        response.data = {"detail": f"assistant_id: {error}", "code": "assistant_not_found"}
    elif isinstance(response.data, dict) and "detail" not in response.data:
        field, words = next(iter(response.data.items()))
        said = words[0] if isinstance(words, list) and words else words
        response.status_code = status.HTTP_422_UNPROCESSABLE_ENTITY
        response.data = {"detail": f"{_NAMES.get(field, field)}: {said}", "code": "invalid"}
    return response


_NAMES: dict[Any, str] = {"agent": "assistant_id", "content": "input"}
