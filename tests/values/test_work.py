"""What small requests make of each other costs no more than what they hold."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from difflib import SequenceMatcher
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import TooLarge
from shoal.values.difference import applied, differences
from shoal.values.work import BYTES_MAX, NODES_MAX, STEPS_MAX, Allowance
from tests.support.examples import examples


def doubled(times: int) -> Any:
    value: Any = [0, 1]
    for _ in range(times):
        value = [value, value]
    return value


@pytest.mark.parametrize(
    "value", ["x" * (BYTES_MAX + 1), b"x" * (BYTES_MAX + 1), [0] * (NODES_MAX + 1), {"a": doubled(40)}, numpy.zeros(BYTES_MAX)]
)
def test_a_copy_beyond_the_allowance_is_refused(value: Any) -> None:
    with pytest.raises(TooLarge, match="Nothing was written"):
        Allowance().charge(value)


def test_copies_are_charged_together() -> None:
    allowance = Allowance()
    for _ in range(4):
        allowance.charge({"s": "x" * (BYTES_MAX // 4 - 10)})
    with pytest.raises(TooLarge):
        allowance.charge("x" * 1000)


HARD = [
    ("a" * 1000, "ab" * 500),
    ([nth % 2 for nth in range(1900)], [nth // 2 % 2 for nth in range(1900)]),
    (list(range(1000)) * 2, list(range(1000, 0, -1)) * 2),
]


@pytest.mark.parametrize(("old", "new"), HARD)
def test_a_least_difference_ends_with_its_steps(old: Any, new: Any) -> None:
    steps = 0

    def count(frame: Any, event: str, _: Any) -> Any:
        nonlocal steps
        steps += event == "line" and "difflib" in frame.f_code.co_filename
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        Allowance().opcodes(old, new)
    finally:
        sys.settrace(before)
    assert steps < 12 * STEPS_MAX


@pytest.mark.parametrize(("old", "new"), HARD)
def test_a_longer_difference_is_right_too(old: Any, new: Any) -> None:
    before, after = [7, *old, 8], [9, *new, 10]
    assert applied(before, differences(before, after)) == after


def test_many_changes_of_one_list_copy_it_once() -> None:
    size = 20_000
    before, after = list(range(size)), list(range(size, 2 * size))
    copied = 0

    class Watched(list[int]):
        def __iter__(self) -> Any:
            nonlocal copied
            copied += 1
            return super().__iter__()

    assert applied(Watched(before), differences(before, after)) == after
    assert copied == 1


@examples(200)
@given(st.lists(st.integers(0, 3), max_size=30), st.lists(st.integers(0, 3), max_size=30), st.integers(0, 200))
def test_any_allowance_finds_what_leads_from_one_to_the_other(old: list[int], new: list[int], steps: int) -> None:
    made = []
    for tag, first, last, low, high in Allowance(steps=steps).opcodes(old, new):
        made += old[first:last] if tag == "equal" else new[low:high]
    assert made == new


@examples(100)
@given(st.lists(st.integers(0, 5), max_size=40), st.lists(st.integers(0, 5), max_size=40))
def test_enough_steps_find_what_difflib_finds(old: list[int], new: list[int]) -> None:
    assert Allowance().opcodes(old, new) == SequenceMatcher(None, old, new, autojunk=False).get_opcodes()


def test_values_beyond_the_bound_are_not_walked_through() -> None:
    class Unread(list[int]):
        def __iter__(self) -> Iterator[int]:
            raise AssertionError("it was read")

    with pytest.raises(TooLarge):
        Allowance(nodes=10).charge(Unread(range(100)))
