from __future__ import annotations

from typing import Any

import pytest
from rest_framework.test import APIClient

from tests.factories import UserFactory


@pytest.fixture
def user(db: None) -> Any:
    return UserFactory()


@pytest.fixture
def client(user: Any) -> APIClient:
    """A client of `user`, that sends and takes JSON."""
    return client_of(user)


def client_of(user: Any) -> APIClient:
    client = APIClient()
    client.force_authenticate(user)
    client.default_format = "json"
    return client
