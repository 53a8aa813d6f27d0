"""What must hold after every schedule, read with plain SQL from the tables."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise
from typing import Any
from uuid import UUID

from django.db import connection

from agentruns.claim import Claimed
from agentruns.exceptions import AgentRunsError
from agentruns.finalize import Ended
from agentruns.journal import Standing
from agentruns.lease import Beat
from agentruns.models import AgentRun
from agentruns.questions import Paused
from agentruns.stop import Stopped

from .driver import Schedule
from .world import World

TERMINAL = ("completed", "failed", "cancelled")
REFUSALS = (
    *("NotRetryable", "NotADraft"),
    *("AlreadyAnswered", "NotWaiting", "QuestionExpired"),
)
HOLDING = ("running", "waiting")

Record = dict[str, Any]


def rows_of(table: str, order: str) -> list[Record]:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT to_jsonb(t) FROM agentruns_{table} t ORDER BY {order}")
        return [_decoded(row) for (row,) in cursor.fetchall()]


def _decoded(row: Any) -> Record:
    return json.loads(row) if isinstance(row, str) else row


class Tables:
    """All rows, as they stand."""

    def __init__(self) -> None:
        self.runs = rows_of("agentrun", "conversation_id, turn, attempt, id")
        self.messages = {row["id"]: row for row in rows_of("message", "id")}
        self.events: dict[str, list[Record]] = defaultdict(list)
        for event in rows_of("runevent", "run_id, seq"):
            self.events[event["run_id"]].append(event)
        self.conversations: dict[str, list[Record]] = defaultdict(list)
        self.questions = {row["run_id"]: row for row in rows_of("question", "run_id")}
        for run in self.runs:
            self.conversations[run["conversation_id"]].append(run)

    def run(self, run_id: UUID) -> Record:
        return next(run for run in self.runs if run["id"] == str(run_id))


def check_tables(tables: Tables) -> None:
    """The invariants that hold for any history."""
    for run in tables.runs:
        check_journal(run, tables.events[run["id"]], tables.messages.get(run["reply_message_id"]))
        check_message(run, tables)
        check_question(run, tables)
    for runs in tables.conversations.values():
        check_turns(runs)
        check_not_stuck(runs)
        check_positions(runs[0]["conversation_id"], tables)


def check_journal(run: Record, events: list[Record], reply: Record | None) -> None:
    if run["trimmed_at"]:
        assert not events, "a trimmed journal has rows"
        assert run["status"] in TERMINAL, "a run was trimmed that has not ended"
        return
    types = [event["type"] for event in events]
    assert [event["seq"] for event in events] == [*range(1, len(events) + 1)], "seq has gaps"
    assert types[:2] == ["user_message_created", "run_queued"], "the journal lacks its beginning"
    assert ("run_started" in types) == (run["started_at"] is not None)
    said = "".join(
        event["payload"]["delta"] for event in events if event["type"] == "content_delta"
    )
    if run["status"] not in TERMINAL:
        assert "complete" not in types, "`complete` stands in the journal of a run that goes on"
        assert reply is None
        return
    assert types.count("complete") == 1, f"{types.count('complete')} times `complete`"
    assert types[-1] == "complete", "an event stands after `complete`"
    assert run["last_seq"] == events[-1]["seq"]
    assert events[-1]["payload"] == {
        "status": run["status"],
        "error": run["error"],
        "message_id": reply and reply["id"],
    }, "`complete` does not say what the row says"
    assert (reply["content"] if reply else "") == said, "the reply is not the deltas"
    assert not (run["status"] == "completed" and run["cancel_requested"]), "completed past a stop"
    if reply:
        whole = "complete" if run["status"] == "completed" else "partial"
        assert reply["status"] in (whole, "superseded"), f"reply is {reply['status']}"


def check_question(run: Record, tables: Tables) -> None:
    """A run that waits has one open question, and no other has; what was asked and answered stands
    in the journal.
    """
    question = tables.questions.get(run["id"])
    answered = bool(question and question["answered_at"])
    assert (question is not None and not answered) == (run["status"] == "waiting")
    waits = run["status"] == "waiting"
    assert not (waits and run["cancel_requested"]), "a run that was asked to stop waits"
    types = [event["type"] for event in tables.events[run["id"]]]
    if not run["trimmed_at"]:
        assert types.count("input_received") == int(answered), "an answer was taken twice, or lost"
        assert types.count("run_resumed") <= types.count("input_received")
        assert (run["answered_seq"] is not None) == answered
    if question is not None:
        assert "input_required" in types


def check_message(run: Record, tables: Tables) -> None:
    """The user's message says how far its turn has come, whichever attempt it is at."""
    same = [other for other in tables.runs if other["user_message_id"] == run["user_message_id"]]
    message = tables.messages[run["user_message_id"]]
    if any(other["started_at"] or other["status"] == "failed" for other in same):
        assert message["status"] == "sent", f"message of a started turn is {message['status']}"
        assert message["position"] is not None
    elif any(other["status"] == "queued" for other in same):
        assert message["status"] == "queued", f"message of a waiting turn is {message['status']}"
    else:
        assert message["status"] == "draft", f"message that never started is {message['status']}"


def check_turns(runs: list[Record]) -> None:
    """Turns start in order, one at a time."""
    holders = sum(run["status"] in HOLDING for run in runs)
    assert holders <= 1, "two turns of a conversation run, or wait for an answer"
    started = [run for run in runs if run["started_at"]]
    for earlier, later in pairwise(started):
        assert earlier["finished_at"], f"turn {later['turn']} started before turn {earlier['turn']}"
        assert earlier["finished_at"] <= later["started_at"], "a turn started before the last ended"
    unstarted = [run for run in runs if run["status"] == "queued" and not run["started_at"]]
    numbers = [(run["turn"], run["attempt"]) for run in unstarted]
    assert (
        not started
        or not numbers
        or min(numbers) > max((run["turn"], run["attempt"]) for run in started)
    ), "a turn started before an earlier one that still waits"


def check_not_stuck(runs: list[Record]) -> None:
    """Where turns wait, one runs, or the head alone is marked."""
    queued = [run for run in runs if run["status"] == "queued"]
    marked = [run["id"] for run in queued if run["ready_at"]]
    if any(run["status"] in HOLDING for run in runs):
        assert not marked, "a queued turn is marked beside the one that runs or waits"
    elif queued:
        assert marked, "the conversation stands still: turns wait and none is marked"
        assert marked == [queued[0]["id"]], "another turn than the head is marked"


def check_positions(conversation_id: str, tables: Tables) -> None:
    said = [
        message
        for message in tables.messages.values()
        if message["conversation_id"] == conversation_id and message["position"] is not None
    ]
    positions = sorted(message["position"] for message in said)
    assert len(set(positions)) == len(positions), "two messages share a place in the transcript"
    for run in tables.conversations[conversation_id]:
        reply = tables.messages.get(run["reply_message_id"])
        if reply and reply["position"] is not None:
            question = tables.messages[run["user_message_id"]]
            assert question["position"] < reply["position"], "a reply stands before its question"


def check_outcomes(schedule: Schedule, world: World, tables: Tables) -> None:
    """What each verb answered is what the rows say."""
    for name, outcome in schedule.outcomes.items():
        _check_outcome(name, outcome, world, tables)
        if isinstance(outcome, Stopped):
            _check_stop(name, outcome, schedule, world, tables)
    if world.claimed is not None:
        run = tables.run(world.running.run_id)
        # What waits for an answer has no worker or reaper to end it: a stop does.
        ended = run["status"] in TERMINAL and not _asked(run, tables)
        enders = [name for name, outcome in schedule.outcomes.items() if _ended_it(outcome)]
        assert len(enders) == int(ended), f"{enders or 'nobody'} ended the run"
    _check_claims_apart(schedule.outcomes.values())


def _check_outcome(name: str, outcome: Any, world: World, tables: Tables) -> None:
    match outcome:
        case AgentRunsError():
            assert type(outcome).__name__ in REFUSALS, f"{name} raised {outcome!r}"
        case Exception():
            raise AssertionError(f"{name} raised {outcome!r}") from outcome
        case Standing():
            _check_append(outcome, world, tables)
        case Beat(standing=Standing.HELD, cancel_requested=False):
            assert _code(world, tables) != "worker_lost", f"{name} renewed a lease that was reaped"
        case Ended(standing=Standing.HELD):
            assert outcome.status == tables.run(world.running.run_id)["status"]
        case AgentRun():
            _check_run(outcome, tables)
        case Paused(standing=Standing.HELD, stopping=False):
            _check_pause(world, tables)
        case [Claimed(), *_]:
            _check_claims(outcome, tables)


def _ended_it(outcome: Any) -> bool:
    """Whether the verb, a worker's ending or a reaper's, says that it ended the run."""
    return outcome is True or (isinstance(outcome, Ended) and outcome.standing is Standing.HELD)


def _asked(run: Record, tables: Tables) -> bool:
    return any(event["type"] == "input_required" for event in tables.events[run["id"]])


def _code(world: World, tables: Tables) -> str | None:
    error = tables.run(world.running.run_id)["error"]
    return error and str(error["code"])


def _check_append(outcome: Standing, world: World, tables: Tables) -> None:
    stored = [
        event["seq"]
        for event in tables.events[str(world.running.run_id)]
        if event["type"] == "content_delta"
    ]
    if outcome is Standing.HELD:
        assert 6 in stored, "a flush that was stored is gone"
    elif _code(world, tables) in ("worker_lost", "timeout"):
        assert 6 not in stored, "a flush that was refused is there"


def _check_pause(world: World, tables: Tables) -> None:
    types = [event["type"] for event in tables.events[str(world.running.run_id)]]
    assert types[6] == "input_required", "a run that waits has not asked"


def _check_stop(
    name: str, stopped: Stopped, schedule: Schedule, world: World, tables: Tables
) -> None:
    for run_id in stopped.cancelled:
        run = tables.run(run_id)
        assert run["status"] == "cancelled", "a run that a stop cancelled goes on"
        assert _asked(run, tables) or run["started_at"] is None, (
            "a run that a stop cancelled was running"
        )
    for run_id in stopped.stopping:
        assert tables.run(run_id)["cancel_requested"], "a run that a stop reached has no flag"
    # Whoever was answered before the stop was, is stopped with the rest.
    place = str(world.conversation_id)
    earlier = set(world.known)
    for other, outcome in schedule.outcomes.items():
        if (
            isinstance(outcome, AgentRun)
            and str(outcome.conversation_id) == place
            and schedule.before(other, name)
        ):
            earlier.add(outcome.pk)
    for run_id in earlier:
        run = tables.run(run_id)
        assert run["status"] in TERMINAL or run["cancel_requested"], "a stop missed a turn"


def _check_run(outcome: AgentRun, tables: Tables) -> None:
    run = tables.run(outcome.pk)
    if outcome.status == "cancelled":
        assert run["status"] == "cancelled", "an ended run was said to be cancelled and is not"
    if outcome.cancel_requested:
        assert run["status"] != "completed", "completed after a stop was answered"


def _check_claims(outcome: Iterable[Claimed], tables: Tables) -> None:
    for claimed in outcome:
        run = tables.run(claimed.run_id)
        assert run["claim_token"] == str(claimed.fence.token), "a claim is not the run's"
        assert run["status"] != "queued"


def _check_claims_apart(outcomes: Iterable[Any]) -> None:
    claims = [outcome for outcome in outcomes if isinstance(outcome, list)]
    taken = [item.run_id for claim in claims for item in claim if isinstance(item, Claimed)]
    assert len(set(taken)) == len(taken), "one run was claimed twice"
