from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.cluster.operation import PARTITIONS, partition_of, tag_of
from shoal.names import is_colocated


@pytest.mark.parametrize(
    ("name", "tag"),
    [
        ("{crew-7}/planner", "crew-7"),
        ("a{b}c{d}", "b"),
        ("{}x", "{}x"),
        ("{open", "{open"),
        ("close}", "close}"),
        ("}a{b}", "b"),
        ("{{a}}", "{a"),
    ],
)
def test_tag_follows_the_rule_of_redis_cluster(name: str, tag: str) -> None:
    assert tag_of(name) == tag


def test_names_with_one_tag_live_together() -> None:
    assert partition_of("s", "{crew-7}/planner") == partition_of("s", "{crew-7}/tokens") == partition_of("s", "crew-7")


@pytest.mark.parametrize(
    ("space", "name", "partition"), [("crew", "researcher-1", 40), ("crew", "{crew-7}/planner", 780), ("a", "bc", 285)]
)
def test_partitions_never_move(space: str, name: str, partition: int) -> None:
    assert partition_of(space, name) == partition


@given(st.text(), st.text(min_size=1), st.text(min_size=1))
def test_a_colocated_space_has_one_partition(crew: str, name: str, other: str) -> None:
    space = f"{{{crew}x}}"
    assert is_colocated(space)
    assert partition_of(space, name) == partition_of(space, other)


@pytest.mark.parametrize("space", ["crew", "{}", "{crew", "crew}", "{crew}/a", "a{crew}"])
def test_only_a_name_that_is_all_in_braces_is_colocated(space: str) -> None:
    assert not is_colocated(space)
    assert len({partition_of(space, f"agent-{n}") for n in range(50)}) > 1


@given(st.text(min_size=1), st.text(min_size=1))
def test_partition_is_in_range(space: str, name: str) -> None:
    assert 0 <= partition_of(space, name) < PARTITIONS


def test_partitions_are_used_evenly() -> None:
    counts = Counter(partition_of("crew", f"agent-{n}") for n in range(PARTITIONS * 20))
    assert len(counts) == PARTITIONS
    assert max(counts.values()) < 60
