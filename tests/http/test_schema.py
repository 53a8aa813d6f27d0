from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from drf_spectacular.validation import validate_schema
from rest_framework.test import APIClient

from agentruns.agents import LIMIT_NAMES
from agentruns.urls import urlpatterns

pytestmark = pytest.mark.django_db


@pytest.fixture
def schema() -> Any:
    answer = APIClient().get("/api/schema")
    assert answer.status_code == 200
    assert answer["Content-Type"] == "application/json"
    return answer.json()


def test_the_schema_is_valid_openapi_3(schema: Any) -> None:
    assert schema["openapi"].startswith("3.")
    validate_schema(schema)


def test_the_project_s_own_command_finds_nothing_to_warn_of() -> None:
    call_command("spectacular", "--validate", "--fail-on-warn", stdout=StringIO())


def test_every_route_is_in_it(schema: Any) -> None:
    assert len(schema["paths"]) == len(urlpatterns) - 1  # all but the schema itself


def test_every_operation_has_a_success_and_the_refusals(schema: Any) -> None:
    for path, operations in schema["paths"].items():
        for operation in operations.values():
            answers = operation["responses"]
            assert {"401", "403"} <= set(answers), path
            assert {"200", "201", "202"} & set(answers), path
            assert operation["summary"], path


def test_the_headers_are_described(schema: Any) -> None:
    operation = schema["paths"]["/api/runs"]["post"]

    assert "Idempotency-Key" in [parameter["name"] for parameter in operation["parameters"]]
    assert set(operation["responses"]["202"]["headers"]) == {"Location", "Idempotent-Replayed"}
    assert set(operation["responses"]) == {"202", "400", "401", "403", "404", "422", "429"}


def test_the_limits_of_a_request_are_described(schema: Any) -> None:
    limits = schema["components"]["schemas"]["RunRequest"]["properties"]["limits"]

    assert set(limits["properties"]) == set(LIMIT_NAMES)
    assert limits["properties"]["queue_seconds"]["maximum"] == 31_622_400


def test_the_stream_is_described(schema: Any) -> None:
    answers = schema["paths"]["/api/runs/{run_id}/events"]["get"]["responses"]

    assert set(answers["200"]["content"]) == {"application/json", "text/event-stream"}
    assert {"204", "400", "404", "406", "503"} <= set(answers)


def test_requests_and_answers_have_examples(schema: Any) -> None:
    operation = schema["paths"]["/api/runs"]["post"]

    assert operation["requestBody"]["content"]["application/json"]["examples"]
    for answer in operation["responses"].values():
        assert answer["content"]["application/json"]["examples"]


@pytest.mark.parametrize("accept", ["text/html", "application/yaml", "x"])
def test_the_schema_is_json_whatever_is_accepted(accept: str) -> None:
    answer = APIClient().get("/api/schema/", headers={"accept": accept})

    assert answer.json()["openapi"]
