"""Answer a run's question on its page."""

from __future__ import annotations

import json
from typing import Any

from django.contrib import messages
from django.http import HttpRequest

from ..answer import answer_run
from ..exceptions import AgentRunsError
from ..models import AgentRun, Question


def open_question(run: AgentRun) -> dict[str, Any] | None:
    """The question that the run waits with, for its page; None where it asks nothing."""
    asked = Question.objects.of(run).unanswered().first()
    if asked is None:
        return None
    text = json.dumps(asked.question, ensure_ascii=False, indent=2)
    return {"key": asked.key, "text": text, "expires_at": asked.expires_at}


def take(model_admin: Any, request: HttpRequest, run: AgentRun) -> None:
    """Give the posted answer to the question that the page showed, and say what became of it."""
    key = request.POST.get("key", "")
    try:
        answer_run(run, json.loads(request.POST.get("answer", "")), key=key)
    except AgentRunsError as error:
        model_admin.message_user(request, str(error), messages.ERROR)
    except (ValueError, RecursionError):  # also of a number with more digits than Python takes
        sentence = 'The answer is not JSON; a text stands in quotes: "yes".'
        model_admin.message_user(request, sentence, messages.ERROR)
    else:
        model_admin.log_change(request, run, f"Answered question {key!r}.")
        model_admin.message_user(request, "Answered; the run goes on.", messages.SUCCESS)
