"""What a run has said so far."""

from __future__ import annotations

from agentruns.reply import Reply


def test_the_text_is_that_of_the_stream_text_only() -> None:
    reply = Reply(
        [
            ("content_delta", {"stream": "text", "delta": "Hel"}),
            ("content_delta", {"stream": "aside", "delta": "no"}),
            ("reasoning_delta", {"stream": "text", "delta": "hm"}),
            ("content_delta", {"stream": "text", "delta": "lo"}),
        ]
    )

    assert reply.content == "Hello"
    assert reply.parts == []


def test_calls_stand_in_call_order_with_their_outcome() -> None:
    reply = Reply(
        [
            ("tool_call_started", {"call_id": "a", "name": "search", "arguments": None}),
            ("tool_call_started", {"call_id": "b", "name": "sum", "arguments": {"x": 1}}),
            ("tool_call_delta", {"call_id": "a", "delta": '{"q"'}),
            (
                "tool_call_finished",
                {"call_id": "b", "name": "sum", "error": {"code": "tool_error"}},
            ),
            ("tool_call_arguments", {"call_id": "a", "arguments": {"q": "x"}}),
            ("tool_call_finished", {"call_id": "a", "name": "search", "result": None}),
        ]
    )

    first, second = reply.parts
    assert first == {
        "type": "tool_call",
        "call_id": "a",
        "name": "search",
        "arguments": {"q": "x"},
        "result": None,
    }
    assert second["error"] == {"code": "tool_error"}
    assert "result" not in second


def test_a_call_that_did_not_finish_has_neither_result_nor_error() -> None:
    reply = Reply([("tool_call_started", {"call_id": "a", "name": "x", "arguments": {}})])

    assert not reply.parts[0].keys() & {"result", "error"}
    assert not reply.has_text
