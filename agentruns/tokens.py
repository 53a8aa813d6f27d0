"""Stream tokens: who may read one run's stream, for clients that cannot set headers.

A token names one run and one user and is signed, so that any process can check it and nothing is
stored. `EventSource` opens the same URL again after each drop, so a token is good for any number of
connections to its run while it lasts, and for nothing else.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.contrib.auth import get_user_model
from django.core import signing
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from .models import AgentRun

SALT = "agentruns.stream-token"
LIFETIME_SECONDS = 600


class InvalidToken(Exception):
    """The token is not one of ours, is for another run, or has expired."""


def issue(run: AgentRun, user: Any) -> str:
    """A token with which `user` may read the stream of `run` for `LIFETIME_SECONDS`."""
    return signing.dumps([run.pk.hex, str(user.pk)], salt=SALT)


def redeem(token: str, run_id: UUID) -> Any:
    """The primary key of the user that the token was issued to, for this run.

    Raises `InvalidToken`. The caller looks the user up, and applies the rule of ownership as
    always.
    """
    try:
        run_hex, user_pk = signing.loads(token, salt=SALT, max_age=LIFETIME_SECONDS)
    except signing.SignatureExpired:
        raise InvalidToken("The stream token has expired; ask for a new one.") from None
    except signing.BadSignature:
        raise InvalidToken("The stream token is not valid.") from None
    if run_hex != run_id.hex:
        raise InvalidToken("The stream token is for another run.")
    return get_user_model()._meta.pk.to_python(user_pk)


class StreamTokenAuthentication(BaseAuthentication):
    """`?token=` on the events route of the run that the token names."""

    def authenticate(self, request: Request) -> tuple[Any, None] | None:
        token = request.query_params.get("token")
        if token is None:
            return None
        return authenticate_token(token, request.parser_context["kwargs"]["run_id"]), None


def authenticate_token(token: str, run_id: str) -> Any:
    """The active user that the token stands for; raises `AuthenticationFailed`."""
    try:
        user_pk = redeem(token, UUID(run_id))
    except (InvalidToken, ValueError) as error:
        sentence = str(error) if isinstance(error, InvalidToken) else "The token is for a run."
        raise AuthenticationFailed(sentence, "invalid_token") from None
    user = get_user_model()._default_manager.filter(pk=user_pk).first()
    if user is None or not user.is_active:
        raise AuthenticationFailed("The user is gone or inactive.", "invalid_token")
    return user
