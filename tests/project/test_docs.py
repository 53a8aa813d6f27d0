from __future__ import annotations

from django.contrib.staticfiles import finders
from django.test import Client


def test_the_docs_page_draws_the_schema_with_what_the_project_has() -> None:
    page = Client().get("/docs/").content.decode()

    assert 'data-schema="/api/schema"' in page
    for name in ("docs/docs.js", "docs/docs.css"):
        assert name in page
        assert finders.find(name)
    assert "https://" not in page
    assert "http://" not in page
