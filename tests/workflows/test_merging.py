"""Three-way merges: what fits together is put together, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import MergeConflict
from shoal.kinds.thread.flows.merging import ABSENT, merged

states = st.dictionaries(st.sampled_from("abc"), st.integers(0, 2) | st.lists(st.integers(0, 2), max_size=3), max_size=3)


@given(states, states)
async def test_a_side_that_changed_nothing_takes_the_other(base: dict[str, Any], side: dict[str, Any]) -> None:
    assert await merged(base, [base, side]) == side
    assert await merged(base, [side, base]) == side


@given(states, states)
async def test_sides_that_agree_are_one(base: dict[str, Any], side: dict[str, Any]) -> None:
    assert await merged(base, [side, side, base]) == side


async def test_each_channel_is_merged_on_its_own() -> None:
    assert await merged({"a": 1, "b": 1}, [{"a": 2, "b": 1}, {"a": 1, "b": 3, "c": 4}]) == {"a": 2, "b": 3, "c": 4}


async def test_a_channel_that_one_side_removed_is_gone() -> None:
    assert await merged({"a": 1, "b": 1}, [{"b": 2}, {"a": 1, "b": 1}]) == {"b": 2}


async def test_lists_that_grew_on_both_sides_keep_all_in_the_order_of_the_sides() -> None:
    assert await merged({"m": [1]}, [{"m": [1, 2]}, {"m": [1, 3, 4]}]) == {"m": [1, 2, 3, 4]}
    assert await merged({}, [{"m": [2]}, {"m": [3]}]) == {"m": [2, 3]}


@pytest.mark.parametrize(
    ("base", "sides"),
    [
        ({"a": 1}, [{"a": 2}, {"a": 3}]),
        ({"a": [1, 2]}, [{"a": [1, 2, 3]}, {"a": [1]}]),
        ({"a": [1, 2]}, [{"a": [1, 2, 3]}, {"a": [2, 2, 4]}]),
        ({"a": 1}, [{"a": 2}, {}]),
        ({"a": 1}, [{"a": 1.0}, {"a": True}]),
        ({"a": [1]}, [{"a": [1, 2]}, {"a": (1, 2)}]),
    ],
)
async def test_clashing_changes_are_a_conflict_that_names_them(base: dict[str, Any], sides: list[dict[str, Any]]) -> None:
    with pytest.raises(MergeConflict) as conflict:
        await merged(base, [{**side, "fine": 1} for side in sides])
    assert conflict.value.detail["channels"] == ["a"]


async def test_the_resolver_decides_what_does_not_fit_together_and_nothing_else() -> None:
    asked = []

    def resolver(channel: str, base: Any, sides: Any) -> Any:
        asked.append((channel, base, list(sides)))
        return ABSENT if channel == "gone" else max(sides)

    sides = [{"n": 2, "gone": 1, "m": [1]}, {"n": 3, "gone": 2, "m": [2]}]
    assert await merged({"n": 1}, sides, resolver) == {"n": 3, "m": [1, 2]}
    assert asked == [("n", 1, [2, 3]), ("gone", ABSENT, [1, 2])]


async def test_a_resolver_may_be_asynchronous() -> None:
    async def resolver(channel: str, base: Any, sides: Any) -> Any:
        return sum(sides)

    assert await merged({"n": 1}, [{"n": 2}, {"n": 3}], resolver) == {"n": 5}
