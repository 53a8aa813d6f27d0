"""Errors as HTTP answers: `{"detail": sentence, "code": word}`, or a field and its messages."""

from __future__ import annotations

import logging
from typing import Any

from django.db import InterfaceError, OperationalError
from rest_framework import status
from rest_framework.exceptions import APIException, NotFound, UnsupportedMediaType, ValidationError
from rest_framework.response import Response
from rest_framework.views import exception_handler

from . import db
from .exceptions import (
    AgentRunsError,
    AlreadyAnswered,
    AnotherQuestion,
    IdempotencyMismatch,
    InvalidAnswer,
    InvalidContent,
    InvalidIdempotencyKey,
    NotADraft,
    NotRetryable,
    NotWaiting,
    QuestionExpired,
    QueueFull,
    UnknownAgent,
)
from .models import AgentRun, Conversation

logger = logging.getLogger(__name__)


class BadRequest(APIException):
    """400 for what is wrong with the request as a whole."""

    status_code = status.HTTP_400_BAD_REQUEST


class Unprocessable(APIException):
    status_code = status.HTTP_422_UNPROCESSABLE_ENTITY


class Conflict(APIException):
    status_code = status.HTTP_409_CONFLICT


class Gone(APIException):
    status_code = status.HTTP_410_GONE


class TooManyTurns(APIException):
    status_code = status.HTTP_429_TOO_MANY_REQUESTS


class NoStreamHere(APIException):
    """406 for a stream where only JSON is served."""

    status_code = status.HTTP_406_NOT_ACCEPTABLE


class Unavailable(APIException):
    """503 while the database cannot be reached, or gives no answer in time."""

    status_code = status.HTTP_503_SERVICE_UNAVAILABLE
    default_detail = "The database cannot be reached; try again."
    default_code = "unavailable"
    wait = 2
    """Seconds, for `Retry-After`."""


def run_not_found() -> NotFound:
    return NotFound("There is no such run.", "run_not_found")


def conversation_not_found() -> NotFound:
    return NotFound("There is no such conversation.", "conversation_not_found")


def malformed(field: str, sentence: str) -> ValidationError:
    return ValidationError({field: [sentence]})


def handle(error: Exception, context: dict[str, Any]) -> Response | None:
    """REST framework's exception handler, with a `code` beside every `detail`.

    It marks the transaction of ATOMIC_REQUESTS for rollback, so a refused request leaves nothing.
    """
    error = _translated(error)
    response = exception_handler(error, context)
    if response is not None and isinstance(error, APIException):
        code = error.get_codes()
        if isinstance(code, str):
            response.data["code"] = code
    return response


def _translated(error: Exception) -> Exception:
    match error:
        case AgentRunsError():
            return _of_the_engine(error)
        case AgentRun.DoesNotExist():
            return run_not_found()
        case Conversation.DoesNotExist():
            return conversation_not_found()
        case OperationalError() | InterfaceError():
            logger.warning("a request found no database: %s", db.brief(error))
            return Unavailable()
        case UnsupportedMediaType():
            return BadRequest(
                "Send the body as JSON, with Content-Type: application/json.", "not_json"
            )
        case _:
            return error


FIELDS: dict[type[AgentRunsError], str] = {
    UnknownAgent: "agent",
    InvalidContent: "content",
    InvalidAnswer: "answer",
}
ANSWERS: dict[type[AgentRunsError], tuple[type[APIException], str]] = {
    InvalidIdempotencyKey: (BadRequest, "invalid_idempotency_key"),
    NotRetryable: (Conflict, "not_retryable"),
    NotWaiting: (Conflict, "not_waiting"),
    AlreadyAnswered: (Conflict, "already_answered"),
    AnotherQuestion: (Conflict, "another_question"),
    QuestionExpired: (Gone, "input_expired"),
    IdempotencyMismatch: (Unprocessable, "idempotency_mismatch"),
    QueueFull: (TooManyTurns, "queue_full"),
}


def _of_the_engine(error: AgentRunsError) -> Exception:
    kind, sentence = type(error), str(error)
    if kind in FIELDS:
        return malformed(FIELDS[kind], sentence)
    if kind is NotADraft:
        return NotFound("There is no such draft in that conversation.", "draft_not_found")
    if kind in ANSWERS:
        refusal, code = ANSWERS[kind]
        return refusal(sentence, code)
    return error
