"""Whose a row is: the one rule of ownership, for every route and stream."""

from __future__ import annotations

import re
from typing import Any, TypeVar
from uuid import UUID

from django.db.models import QuerySet

from .models import AgentRun, Conversation

Row = TypeVar("Row", AgentRun, Conversation)

_CANONICAL_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


def owned(model: type[Row], user: Any) -> QuerySet[Row]:
    """The user's own rows. Nobody sees another user's, staff included; no user, no rows."""
    rows: QuerySet[Row] = model.objects.filter(user_id=getattr(user, "pk", None))
    return rows


def parse_id(text: Any) -> UUID | None:
    """The id that the text writes in the usual 36 characters; None where it writes none."""
    if isinstance(text, str) and _CANONICAL_ID.fullmatch(text):
        return UUID(text)
    return None
