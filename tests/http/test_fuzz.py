"""Requests made up from the schema: none is a server error, all answers are what it says."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from django.core.signals import request_finished, request_started
from django.db import close_old_connections
from hypothesis import HealthCheck, settings
from rest_framework.authtoken.models import Token
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from agentruns.models import AgentRun
from project.wsgi import application
from tests.factories import AgentRunFactory, journal

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "15"))
"""Requests for each operation; more where somebody has the time."""
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]

schema = schemathesis.openapi.from_wsgi("/api/schema", application)


@pytest.fixture
def run(user: Any) -> AgentRun:
    failed: AgentRun = AgentRunFactory(failed=True, conversation__user=user, turn=1)
    journal(failed, ("content_delta", {"stream": "text", "delta": "Hello"}))
    return failed


@pytest.fixture(autouse=True)
def one_connection() -> Iterator[None]:
    """As Django's own test client has it: the test's transaction outlives its requests."""
    ends = (request_started, request_finished)
    for signal in ends:
        signal.disconnect(close_old_connections)
    yield
    for signal in ends:
        signal.connect(close_old_connections)


@pytest.mark.django_db
@schema.parametrize()
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="FUZZ_EXAMPLES" not in os.environ,
    suppress_health_check=list(HealthCheck),
    database=None,
)
def test_made_up_requests_are_answered_as_the_schema_says(
    case: schemathesis.Case, user: Any, run: AgentRun
) -> None:
    token, _ = Token.objects.get_or_create(user=user)
    for name, own in (("run_id", run.pk), ("conversation_id", run.conversation_id)):
        # A made-up id exists nowhere; half of the requests get as far as a row.
        if name in case.path_parameters and hash(str(case.path_parameters[name])) % 2:
            case.path_parameters[name] = str(own)

    case.call_and_validate(headers={"Authorization": f"Token {token.key}"}, checks=CHECKS)
