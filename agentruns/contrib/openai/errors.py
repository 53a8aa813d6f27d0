"""Errors in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`.

The SDKs send a request again on 408, 409, 429 and 5xx, a `POST` as well, unless a header says that
it is of no use.
"""

from __future__ import annotations

from typing import Any

from rest_framework import status
from rest_framework.exceptions import APIException, Throttled
from rest_framework.response import Response

from ...exceptions import UnknownAgent

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_PARAMS = {"agent": "model", "content": "input"}
"""Names of the native API in this wire's words."""


class Refused(APIException):
    """400, with the parameter that is at fault."""

    status_code = status.HTTP_400_BAD_REQUEST

    def __init__(self, sentence: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(sentence, code or "invalid_value")
        self.param = param


def reshaped(error: Exception, response: Response) -> Response:
    """The native answer to this error, in OpenAI's shape."""
    number = response.status_code
    message, param, code = _said(response.data)
    if isinstance(error, Refused):
        param = error.param
    if isinstance(error, UnknownAgent):
        code = "model_not_found"
    kind = _TYPES.get(number, "invalid_request_error" if number < 500 else "server_error")
    response.data = {
        "error": {"message": message, "type": kind, "param": param, "code": code},
    }
    if number < 500 and not isinstance(error, Throttled):
        response["x-should-retry"] = "false"
    return response


def _said(data: Any) -> tuple[str, str | None, str | None]:
    """Sentence, parameter and code of a native error."""
    if isinstance(data, dict) and "detail" in data:
        return str(data["detail"]), None, data.get("code")
    if isinstance(data, dict) and data:
        field, messages = next(iter(data.items()))
        words = messages[0] if isinstance(messages, list) and messages else messages
        param = _PARAMS.get(field, field)
        return str(words), param, "invalid_value"
    return str(data), None, None
