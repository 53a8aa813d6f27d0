"""Conversations: open, list, look at, read, stop."""

from __future__ import annotations

from django.db.models import Case, F, OuterRef, Q, QuerySet, Subquery, When
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response

from ..models import AgentRun, Conversation, Message, MessageStatus
from ..owned import owned
from ..serializers import (
    ConversationDetailSerializer,
    ConversationRequestSerializer,
    ConversationSerializer,
    MessagesSerializer,
    StoppedSerializer,
)
from ..stop import stop_conversation
from . import documents
from .api import ApiView


@documents.conversations
class ConversationsView(ApiView):
    serializer_class = ConversationSerializer

    def get_queryset(self) -> QuerySet[Conversation]:
        return owned(Conversation, self.request.user)

    def get(self, request: Request) -> Response:
        page = self.paginate_queryset(self.get_queryset())
        return self.get_paginated_response(ConversationSerializer(page or [], many=True).data)

    def post(self, request: Request) -> Response:
        body = ConversationRequestSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        conversation = Conversation.objects.create(user_id=request.user.pk, **body.validated_data)
        data = ConversationSerializer(conversation).data
        return Response(data, status=status.HTTP_201_CREATED)


class ConversationDetailView(ApiView):
    def get_queryset(self) -> QuerySet[Conversation]:
        return owned(Conversation, self.request.user)


@documents.conversation
class ConversationView(ConversationDetailView):
    serializer_class = ConversationDetailSerializer

    def get(self, request: Request, conversation_id: str) -> Response:
        conversation = self.get_conversation(conversation_id)
        active = self.runs().filter(conversation_id=conversation.pk).active()  # type: ignore[attr-defined]
        drafts = Message.objects.filter(conversation_id=conversation.pk).drafts()
        conversation.active_runs = active.in_turn_order()  # type: ignore[attr-defined]
        conversation.drafts = drafts  # type: ignore[attr-defined]
        return Response(ConversationDetailSerializer(conversation).data)


@documents.messages
class MessagesView(ConversationDetailView):
    serializer_class = MessagesSerializer

    def get(self, request: Request, conversation_id: str) -> Response:
        conversation = self.get_conversation(conversation_id)
        return Response(MessagesSerializer({"results": in_order(conversation)}).data)


@documents.conversation_stop
class ConversationStopView(ConversationDetailView):
    serializer_class = StoppedSerializer

    def post(self, request: Request, conversation_id: str) -> Response:
        stopped = stop_conversation(self.get_conversation(conversation_id))
        return Response(StoppedSerializer(stopped).data, status=status.HTTP_202_ACCEPTED)


def in_order(conversation: Conversation) -> QuerySet[Message]:
    """The transcript, then the messages that wait, in turn order, then drafts.

    One statement: read apart, a message whose turn starts in between would be in neither part.
    """
    waiting = MessageStatus.QUEUED
    turns = AgentRun.objects.filter(user_message_id=OuterRef("pk")).order_by("-turn").values("turn")
    messages: QuerySet[Message] = Message.objects.filter(conversation_id=conversation.pk)
    return (
        messages.filter(Q(position__isnull=False) | Q(status__in=(waiting, MessageStatus.DRAFT)))
        .annotate(
            is_draft=Q(position__isnull=True, status=MessageStatus.DRAFT),
            turn=Case(When(status=waiting, then=Subquery(turns[:1]))),
        )
        .order_by(F("position").asc(nulls_last=True), "is_draft", "turn", "created_at", "id")
    )
