"""Differences of values: they make the one of the other, and say no more than that."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal import values
from shoal.errors import InvalidInput
from shoal.values import difference
from shoal.values.difference import Change, applied, channel_differences, differences
from tests.support.examples import examples
from tests.support.samples import shape

leaves = st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-1, 1) | st.sampled_from(["", "a", "a/b", "~0", "é"])
trees = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(st.sampled_from(["a", "b", "a/b", "~", "0"]), inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
    ),
    max_leaves=20,
)


def unordered(value: Any) -> Any:
    """The order of a map's keys does not count."""
    if isinstance(value, dict):
        return dict, sorted((key, unordered(inner)) for key, inner in value.items())
    if isinstance(value, (list, tuple)):
        return type(value), [unordered(inner) for inner in value]
    return type(value), values.encode(value)


@examples(300)
@given(trees, trees)
def test_applied_to_the_one_they_make_the_other(before: Any, after: Any) -> None:
    assert repr(unordered(applied(before, differences(before, after)))) == repr(unordered(after))


@examples(100)
@given(trees)
def test_equal_values_do_not_differ(value: Any) -> None:
    assert differences(value, values.decode(values.encode(value))) == []


@examples(100)
@given(st.lists(st.integers(0, 3), max_size=8), st.lists(st.integers(0, 3), max_size=8))
def test_without_the_matcher_they_still_make_the_other(before: list[int], after: list[int]) -> None:
    whole, difference.ELEMENTS_MAX = difference.ELEMENTS_MAX, 0
    try:
        assert applied(before, differences(before, after)) == after
    finally:
        difference.ELEMENTS_MAX = whole


def test_a_list_that_grew_shows_what_was_appended() -> None:
    before = [{"role": "user", "content": str(n)} for n in range(50)]
    assert differences(before, [*before, "x", "y"]) == [Change("add", "/50", after="x"), Change("add", "/51", after="y")]


def test_an_element_inserted_or_removed_within_a_list_shows_just_that() -> None:
    assert differences([1, 2, 3], [1, 9, 2, 3]) == [Change("add", "/1", after=9)]
    assert differences([1, 2, 3], [1, 3]) == [Change("remove", "/1", before=2)]


def test_in_a_very_long_list_an_insertion_is_one_change() -> None:
    before = list(range(difference.ELEMENTS_MAX + 9))
    assert differences(before, [-1, *before]) == [Change("add", "/0", after=-1)]


def test_a_field_of_an_element_is_named_by_its_path() -> None:
    before = {"plan": [{"step": 1, "done": False}, {"step": 2}]}
    after = {"plan": [{"step": 1, "done": True}, {"step": 2}]}
    assert differences(before, after) == [Change("replace", "/plan/0/done", False, True)]


def test_steps_of_a_path_are_escaped() -> None:
    assert differences({"a/b": {"~": 1}}, {"a/b": {"~": 2}}) == [Change("replace", "/a~1b/~0", 1, 2)]


@pytest.mark.parametrize(("before", "after"), [(1, 1.0), (1, True), ([1], (1,)), ("1", 1), (None, False), ({1: 2}, {"1": 2})])
def test_values_of_two_types_differ(before: Any, after: Any) -> None:
    assert differences(before, after) == [Change("replace", "", before, after)]


def test_the_order_of_a_maps_keys_does_not_count() -> None:
    assert differences({"a": 1, "b": [2]}, {"b": [2], "a": 1}) == []


def test_registered_types_are_values() -> None:
    day = datetime(2026, 1, 1, tzinfo=UTC)
    assert differences({"at": day}, {"at": day.replace(day=2)})[0].path == "/at"


def test_channels_that_come_and_go_are_added_and_removed() -> None:
    found = channel_differences({"a": 1, "b": [1], "c": 0}, {"b": [1, 2], "c": 0, "d": {}})
    assert found == {
        "a": [Change("remove", "", before=1)],
        "b": [Change("add", "/1", after=2)],
        "d": [Change("add", "", after={})],
    }


def test_a_change_at_a_place_that_is_not_there_is_refused() -> None:
    with pytest.raises(InvalidInput, match="has no '/a/b' to change"):
        applied({"a": 1}, [Change("replace", "/a/b", 1, 2)])


def test_the_changed_value_is_another_one() -> None:
    before = {"a": [1]}
    after = applied(before, [Change("add", "/a/1", after=2)])
    assert (before, shape(after)) == ({"a": [1]}, shape({"a": [1, 2]}))
