"""What the server does for one claim, by EXPLAIN of the very statement that a worker sends."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from django.db import transaction

from agentruns import claim, db

LEASE = timedelta(seconds=30)


class _Explained(Exception):
    pass


def claim_plan(
    count: int, *, agents: tuple[str, ...] = ("noop",), **options: Any
) -> dict[str, Any]:
    """The executed plan of a claim of `count` runs, rolled back; `options` are `claim`'s."""
    tokens = claim.new_tokens(count)
    plan = explained(
        lambda: claim.claim(agents, tokens, "bench:1:plan", lease=LEASE, **options), "status ="
    )
    assert plan is not None
    return plan


def explained(verb: Callable[[], Any], part: str) -> dict[str, Any] | None:
    """The executed plan of the first statement of `verb` that contains `part`; all is rolled
    back.
    """

    def explain(execute: Any, statement: str, params: Any, many: bool, context: Any) -> Any:
        head, separator, last = statement.rpartition(";\n")
        if part not in last:
            return execute(statement, params, many, context)
        question = "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) "
        execute(head + separator + question + last, params, many, context)
        cursor = context["cursor"]
        while cursor.nextset():
            pass
        answer = cursor.fetchone()[0]
        plan = json.loads(answer) if isinstance(answer, str) else answer
        raise _Explained(plan[0]["Plan"])

    connection = db.connection()
    try:
        with transaction.atomic(using=connection.alias), connection.execute_wrapper(explain):
            verb()
    except _Explained as found:
        plan: dict[str, Any] = found.args[0]
        return plan
    return None


def buffers(plan: dict[str, Any]) -> int:
    """Pages that the statement touched, triggers aside.

    A CTE that nothing reads runs after its parent's own time, so it is not in its parent's figure.
    """
    read = {node["CTE Name"] for node in nodes(plan) if "CTE Name" in node}
    unread = [
        node
        for node in plan.get("Plans", ())
        if node.get("Subplan Name", "").startswith("CTE ")
        and node["Subplan Name"].removeprefix("CTE ") not in read
    ]
    return sum(_touched(node) for node in (plan, *unread))


def rows_of_heads(plan: dict[str, Any]) -> int:
    """Rows that the claim locked."""
    return next(n["Actual Rows"] for n in nodes(plan) if n["Node Type"] == "LockRows")


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


def _touched(node: dict[str, Any]) -> int:
    return node["Shared Hit Blocks"] + node["Shared Read Blocks"]
