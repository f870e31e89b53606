"""Histories of the quorum register that no order explains are found, and others are not blamed."""

from __future__ import annotations

import pytest

from simulation.judging.linearity import Operation, broken


def made(number: int, version: int, begun_s: float, ended_s: float) -> Operation:
    return Operation(number, version - 1, begun_s, ended_s, "made", version)


def shown(version: int, content: int, begun_s: float, ended_s: float) -> Operation:
    return Operation(0, -1, begun_s, ended_s, "shown", version, content)


def unknown(number: int, expected: int, begun_s: float) -> Operation:
    return Operation(number, expected, begun_s)


def found(*operations: Operation) -> bool:
    return bool(list(broken(operations)))


def test_a_history_in_one_order_is_sound() -> None:
    assert not found(
        shown(0, 0, 0, 1),
        made(1, 1, 0, 2),
        Operation(2, 0, 0.5, 3, "refused", 1),
        unknown(3, 1, 4),
        Operation(4, 1, 4, 5, "denied"),
        shown(2, 3, 6, 7),
    )


def test_a_change_of_unknown_outcome_may_have_been_made_or_not() -> None:
    assert not found(unknown(1, 0, 1), shown(0, 0, 5, 6), shown(1, 1, 7, 8))
    assert not found(unknown(1, 0, 1), made(2, 1, 1, 3))
    assert not found(unknown(1, 0, 1), made(2, 2, 3, 4))


def test_two_changes_that_made_one_version_are_found() -> None:
    assert found(made(1, 1, 0, 9), made(2, 1, 0, 9))
    assert found(made(1, 1, 0, 9), shown(1, 2, 0, 9), unknown(2, 0, 0))


@pytest.mark.answers("register-is-linearizable", note="the checker of histories")
def test_a_version_that_goes_back_in_time_is_found() -> None:
    assert found(made(1, 1, 0, 1), shown(0, 0, 2, 3))
    assert found(made(1, 1, 0, 1), made(2, 2, 2, 3), Operation(3, 5, 4, 5, "refused", 1))
    assert found(made(2, 2, 0, 1), unknown(3, 0, 0), made(1, 1, 2, 3))


def test_content_that_nobody_wrote_or_that_was_denied_is_found() -> None:
    assert found(shown(1, 7, 0, 1))
    assert found(Operation(1, 0, 0, 1, "denied"), shown(1, 1, 2, 3))
    assert found(Operation(1, 0, 0, 1, "refused", 3), shown(1, 1, 2, 3), unknown(8, 1, 0), unknown(9, 2, 0))
    assert found(shown(1, 1, 0, 1), unknown(1, 0, 2))


def test_a_change_that_is_made_twice_or_on_another_version_than_it_expects_is_found() -> None:
    assert found(made(1, 1, 0, 1), made(2, 2, 2, 3), shown(3, 1, 4, 5))
    assert found(unknown(1, 1, 0), shown(1, 1, 2, 3))


def test_a_refusal_of_the_version_that_was_expected_is_found() -> None:
    assert found(made(1, 1, 0, 1), Operation(2, 1, 2, 3, "refused", 1))


def test_a_version_that_nobody_can_have_made_is_found() -> None:
    assert found(made(2, 2, 0, 1))
    assert not found(made(2, 2, 0, 1), unknown(1, 0, 0))
