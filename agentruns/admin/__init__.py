"""Everything at a glance under the project's admin site, read-only; acts go through the verbs."""

from __future__ import annotations

from .conversations import ConversationAdmin, MessageAdmin
from .runs import RunAdmin

__all__ = ["ConversationAdmin", "MessageAdmin", "RunAdmin"]
