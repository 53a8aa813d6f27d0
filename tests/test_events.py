from __future__ import annotations

import json
from uuid import uuid4

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from agentruns.events import MAX_SEQ, Page, on_the_wire, read_page, read_pages
from agentruns.models import AgentRun, RunEvent, RunStatus
from tests.factories import AgentRunFactory, MessageFactory, journal

pytestmark = pytest.mark.django_db
COMPLETE = ("complete", {"status": "completed", "error": None, "message_id": None})


def delta(text: str) -> tuple[str, dict[str, object]]:
    return "content_delta", {"stream": "text", "delta": text}


def page_of(run: AgentRun, after: int = 0, limit: int = 100) -> Page:
    page = read_page(run.pk, after, limit)
    assert page is not None
    return page


def test_an_event_is_its_payload_with_type_and_seq() -> None:
    run = AgentRunFactory(running=True)
    journal(run, ("run_started", {"attempt": 1}), delta("Hel"))

    page = page_of(run, after=2)

    assert [json.loads(frame.json) for frame in page.frames] == [
        {"type": "run_started", "seq": 3, "attempt": 1},
        {"type": "content_delta", "seq": 4, "stream": "text", "delta": "Hel"},
    ]
    assert [(frame.seq, frame.type) for frame in page.frames] == [
        (3, "run_started"),
        (4, "content_delta"),
    ]


def test_a_page_is_one_statement_however_many_runs() -> None:
    runs = AgentRunFactory.create_batch(3)
    for run in runs:
        journal(run)

    with CaptureQueriesContext(
        connection,
    ) as queries:
        pages = read_pages({run.pk: index for index, run in enumerate(runs)}, limit=10)

    assert len(queries) == 1
    assert [len(pages[run.pk].frames) for run in runs] == [2, 1, 0]


def test_a_run_that_does_not_exist_has_no_page() -> None:
    assert read_page(uuid4(), 0, 10) is None


def test_pages_join_without_a_gap() -> None:
    run = AgentRunFactory(ended=True, last_seq=7)
    journal(run, *[delta(letter) for letter in "abcd"], COMPLETE)
    seqs, cursor = [], 0

    while not (page := page_of(run, cursor, limit=3)).done:
        seqs += [frame.seq for frame in page.frames]
        cursor = page.cursor

    assert seqs + [frame.seq for frame in page.frames] == [1, 2, 3, 4, 5, 6, 7]


def test_a_running_run_stands_at_its_last_event_and_is_never_done() -> None:
    run = AgentRunFactory(running=True)
    journal(run, delta("a"))

    page = page_of(run, after=3)

    assert (page.status, page.last_seq, page.frames, page.done) == (RunStatus.RUNNING, 3, [], False)


def test_an_ended_run_is_done_at_complete() -> None:
    run = AgentRunFactory(ended=True, last_seq=3)
    journal(run, COMPLETE)

    assert page_of(run).done
    assert not page_of(run, limit=2).done
    assert page_of(run, after=3).frames == []
    assert page_of(run, after=3).done


def test_a_trimmed_journal_ends_with_complete_from_the_row() -> None:
    run = AgentRunFactory(trimmed=True, last_seq=9)
    MessageFactory(pk=run.reply_message_id, conversation=run.conversation, reply=True)

    page = page_of(run, after=4)

    assert [json.loads(frame.json) for frame in page.frames] == [
        {
            "type": "complete",
            "seq": 9,
            "status": "completed",
            "error": None,
            "message_id": str(run.reply_message_id),
            "trimmed": True,
        }
    ]
    assert page.done
    assert page_of(run, after=9).frames == []


def test_a_journal_without_complete_gets_it_from_the_row() -> None:
    run = AgentRunFactory(failed=True)
    journal(run, delta("a"))

    page = page_of(run, after=2)

    assert json.loads(page.frames[-1].json) == {
        "type": "complete",
        "seq": 4,
        "status": "failed",
        "error": {"code": "agent_error", "message": "The agent failed."},
        "message_id": None,
    }
    assert page.done
    assert not page_of(run, limit=3).done
    assert page_of(run, after=4).frames == []


def test_complete_is_never_made_where_it_is_stored() -> None:
    run = AgentRunFactory(ended=True, last_seq=None)
    journal(run, COMPLETE)

    assert [frame.seq for frame in page_of(run).frames] == [1, 2, 3]
    assert page_of(run).last_seq == 3


def test_a_cursor_beyond_every_number_is_past_the_end() -> None:
    run = AgentRunFactory(ended=True, last_seq=3)
    journal(run, COMPLETE)

    assert page_of(run, after=10**30).done
    assert page_of(run, after=MAX_SEQ).frames == []


@pytest.mark.parametrize(
    "text", ["plain", "", 'quo"te\\', "line\nbreak\r", "\u2028\u2029\x85", "é漢😀", "\x7f\x1f"]
)
def test_any_text_goes_out_as_ascii_on_one_line(text: str) -> None:
    run = AgentRunFactory(running=True)
    journal(run, delta(text))
    payload = {"stream": "text", "delta": text}

    [frame] = page_of(run, after=2).frames

    assert frame.json.isascii()
    assert frame.json.isprintable() or "\x7f" in text
    assert json.loads(frame.json) == {"type": "content_delta", "seq": 3, **payload}


def test_an_empty_payload_is_spliced_too() -> None:
    assert json.loads(on_the_wire(5, "ping", "{}")) == {"type": "ping", "seq": 5}


@pytest.mark.parametrize("payload", ["null", "[1]", '"text"', "7"])
def test_a_payload_that_is_no_object_goes_out_as_one(payload: str) -> None:
    event = json.loads(on_the_wire(5, "odd", payload))

    assert event == {"type": "odd", "seq": 5, "payload": json.loads(payload)}


def test_numbers_are_not_rounded_on_their_way() -> None:
    run = AgentRunFactory(running=True)
    journal(run)
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO agentruns_runevent (run_id, seq, type, payload)"
            " VALUES (%s, 3, 'n', '{\"n\": 0.1234567890123456789012345}')",
            [run.pk],
        )

    assert '"n": 0.1234567890123456789012345' in page_of(run).frames[-1].json
    assert RunEvent.objects.filter(run=run).count() == 3
