"""Keys as clients of other wires send them."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth import get_user_model
from rest_framework.authtoken.models import Token
from rest_framework.test import APIClient


@pytest.mark.django_db
@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Token {}"},
        {"Authorization": "Bearer {}"},
        {"Authorization": "bearer {}"},
        {"x-api-key": "{}"},
    ],
)
def test_a_key_is_taken_wherever_the_client_puts_it(headers: dict[str, str]) -> None:
    user = get_user_model().objects.create(username="somebody")
    key = Token.objects.create(user=user).key

    def ask(key: str) -> Any:
        sent = {name: value.format(key) for name, value in headers.items()}
        return APIClient().get("/v1/conversations/x", headers=sent)

    assert ask(key).status_code == 404
    assert ask(key).json()["error"]["code"] == "conversation_not_found"
    refused = ask("another")
    assert (refused.status_code, refused.json()["error"]["type"]) == (401, "authentication_error")
