"""Pages of lists, newest first, each with links to the next and the previous one."""

from __future__ import annotations

from typing import Any

from django.utils.dateparse import parse_datetime
from rest_framework.exceptions import NotFound
from rest_framework.pagination import Cursor, CursorPagination
from rest_framework.request import Request

from .errors import malformed
from .events import parse_cursor

PAGE_SIZE = 20
MAX_PAGE_SIZE = 100


class NewestFirst(CursorPagination):
    """Cursor pagination whose `cursor` and `limit` are checked: 400 with the field."""

    ordering = ("-created_at", "-id")
    page_size = PAGE_SIZE
    page_size_query_param = "limit"
    page_size_query_description = (
        f"How many at most; {PAGE_SIZE} by default, up to {MAX_PAGE_SIZE}."
    )
    max_page_size = MAX_PAGE_SIZE
    cursor_query_description = "Taken from the links `next` and `previous`."

    def get_page_size(self, request: Request) -> int:
        return parse_limit(request, default=PAGE_SIZE, most=MAX_PAGE_SIZE)

    def decode_cursor(self, request: Request) -> Cursor | None:
        try:
            cursor: Cursor | None = super().decode_cursor(request)
            if cursor is not None and cursor.position is not None:
                _check_position(str(cursor.position))
        except (NotFound, ValueError):
            raise malformed("cursor", "Use a cursor from the links of an earlier page.") from None
        return cursor

    def get_ordering(self, request: Request, queryset: Any, view: Any) -> tuple[str, ...]:
        return self.ordering


def parse_limit(request: Request, *, default: int, most: int) -> int:
    """The query's `limit`, at most `most`; a 400 unless it is a whole number above 0."""
    text = request.query_params.get("limit")
    if text is None:
        return default
    limit = parse_cursor(text)
    if not limit:
        raise malformed("limit", "Must be a whole number above 0.")
    return min(limit, most)


def _check_position(position: str) -> None:
    if parse_datetime(position) is None:
        raise ValueError(position)
