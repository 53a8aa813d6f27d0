"""What the demo's agents work with."""

from __future__ import annotations

import pytest

from project.chat import calculator, notes


@pytest.mark.parametrize(
    ("text", "value"), [("What is 6 * 7?", 42), ("(1 + 2) / 4 please", 0.75), ("2 - -3.5", 5.5)]
)
def test_a_sum_is_found_in_a_question_and_worked_out(text: str, value: float) -> None:
    assert calculator.holds_sum(text)
    assert calculator.evaluate(calculator.find_sum(text)) == value


@pytest.mark.parametrize("text", ["What is a lease?", "", "room 42", "a - b"])
def test_a_question_without_a_sum_is_not_for_the_calculator(text: str) -> None:
    assert not calculator.holds_sum(text)


@pytest.mark.parametrize(
    "expression", ["1 / 0", "9 ** 99", "__import__('os')", "1 +", "9e99 * 9", "(" * 500]
)
def test_what_is_no_sum_has_no_value(expression: str) -> None:
    with pytest.raises((ArithmeticError, ValueError)):
        calculator.evaluate(expression)


def test_the_notes_are_searched_by_words() -> None:
    (best, *_) = notes.search("When does a lease lapse?")

    assert best.startswith("A lease is")
    assert notes.search("zebra") == []
