"""Examples for the OpenAPI document."""

from __future__ import annotations

from drf_spectacular.utils import OpenApiExample

RUN_ID = "019aa0f5-6b1c-7000-8000-5f0d3f0f7a01"
CONVERSATION_ID = "019aa0f5-6b1c-7001-8000-5f0d3f0f7a02"
MESSAGE_ID = "019aa0f5-6b1c-7002-8000-5f0d3f0f7a03"
REPLY_ID = "019aa0f5-6b1c-7003-8000-5f0d3f0f7a04"

STREAM = """\
Every event of the run, from its first to `complete`, in one of two forms that `Accept` selects.

`text/event-stream`: one frame an event, `id: <seq>` and one `data:` line with the event as JSON.
Comment lines keep a quiet stream alive. The stream ends after `complete`; a reconnect past the end
gets 204. `application/json`: what is there now, a page at a time. Without a preference, the stream
where the server has streams (ASGI), else JSON."""

REQUESTS = [
    OpenApiExample("First turn", {"content": "Hello"}, request_only=True),
    OpenApiExample(
        "Next turn",
        {
            "content": "And in French?",
            "conversation_id": CONVERSATION_ID,
            "agent": "assistant",
            "metadata": {"page": "/help"},
        },
        request_only=True,
    ),
]
QUEUED = OpenApiExample(
    "Queued",
    {
        "run_id": RUN_ID,
        "conversation_id": CONVERSATION_ID,
        "user_message_id": MESSAGE_ID,
        "reply_message_id": REPLY_ID,
        "agent": "assistant",
        "status": "queued",
        "cancel_requested": False,
        "error": None,
        "attempt": 1,
        "retry_of": None,
        "last_seq": 2,
        "metadata": {},
        "created_at": "2026-01-05T09:30:00.000000Z",
        "started_at": None,
        "finished_at": None,
    },
    response_only=True,
)
ANSWER = OpenApiExample(
    "An approval", {"answer": {"approved": True}, "key": "refund:42"}, request_only=True
)
INVALID = OpenApiExample("A field", {"content": ["This field is required."]}, response_only=True)
EVENTS = OpenApiExample(
    "A run that has ended",
    {
        "run_id": RUN_ID,
        "status": "completed",
        "events": [
            {"type": "content_delta", "seq": 4, "stream": "text", "delta": "Hello"},
            {
                "type": "complete",
                "seq": 5,
                "status": "completed",
                "error": None,
                "message_id": REPLY_ID,
            },
        ],
        "cursor": 5,
        "last_seq": 5,
        "done": True,
    },
    response_only=True,
    media_type="application/json",
)
FRAMES = OpenApiExample(
    "Frames",
    'id: 4\ndata: {"type": "content_delta", "seq": 4, "stream": "text", "delta": "Hello"}\n\n',
    response_only=True,
    media_type="text/event-stream",
)
OPENING = OpenApiExample("With a title", {"title": "Holidays"}, request_only=True)
STOPPED = OpenApiExample(
    "One running, one waiting",
    {
        "cancelled": ["019aa0f5-6b1c-7004-8000-5f0d3f0f7a05"],
        "stopping": [RUN_ID],
        "drafts": [{"message_id": MESSAGE_ID, "content": "And in French?"}],
    },
    response_only=True,
)
