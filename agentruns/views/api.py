"""What all views share: JSON, a user, and that user's rows only.

The project's own REST framework settings decide authentication, permissions and throttling. An
authenticated user is asked for on top: a project that set nothing has `AllowAny`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db.models import F, OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.http import HttpRequest
from django.urls import reverse
from drf_spectacular.openapi import AutoSchema
from rest_framework.generics import GenericAPIView
from rest_framework.permissions import IsAuthenticated
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from .. import errors
from ..models import AgentRun, Conversation, RunEvent
from ..owned import owned, parse_id
from ..pagination import NewestFirst
from ..serializers import RunSerializer
from ..wire import AlwaysTheFirst, ObjectParser

ENQUEUED_SEQ = 2
"""Where a journal stands that has the two events of enqueue."""


class ApiView(GenericAPIView[Any]):
    schema = AutoSchema()
    renderer_classes = [JSONRenderer]
    parser_classes = [ObjectParser]
    content_negotiation_class = AlwaysTheFirst
    pagination_class = NewestFirst
    filter_backends = []

    def initialize_request(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Request:
        if "HTTP_TRANSFER_ENCODING" in request.META:
            # REST framework takes a body that came in chunks for none.
            request.META["CONTENT_LENGTH"] = str(len(request.body))
        return super().initialize_request(request, *args, **kwargs)

    def get_permissions(self) -> list[Any]:
        return [IsAuthenticated(), *super().get_permissions()]

    def get_exception_handler(self) -> Callable[..., Response | None]:
        return errors.handle

    def get_queryset(self) -> QuerySet[Any]:
        return self.runs()

    def runs(self) -> QuerySet[AgentRun]:
        """The user's runs, each with where its journal stands."""
        newest = RunEvent.objects.filter(run_id=OuterRef("pk")).order_by("-seq").values("seq")[:1]
        return owned(AgentRun, self.request.user).annotate(
            journal_seq=Coalesce(F("last_seq"), Subquery(newest), 0)
        )

    def get_run(self, run_id: str) -> AgentRun:
        """The user's run of that id; 404 for another's, a missing one and what is no id."""
        found = parse_id(run_id)
        run = self.runs().filter(pk=found).first() if found else None
        if run is None:
            raise errors.run_not_found()
        self.check_object_permissions(self.request, run)
        return run

    def get_conversation(self, conversation_id: str) -> Conversation:
        found = parse_id(conversation_id)
        rows = owned(Conversation, self.request.user)
        conversation = rows.filter(pk=found).first() if found else None
        if conversation is None:
            raise errors.conversation_not_found()
        self.check_object_permissions(self.request, conversation)
        return conversation

    def run_answer(self, run: AgentRun, *, status: int, located: bool = False) -> Response:
        headers = {"Location": self.address_of(run)} if located else None
        return Response(RunSerializer(run).data, status=status, headers=headers)

    def address_of(self, run: AgentRun) -> str:
        match = self.request.resolver_match
        name = f"{match.namespace}:run" if match and match.namespace else "run"
        return reverse(name, kwargs={"run_id": str(run.pk)})
