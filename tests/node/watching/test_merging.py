"""Changes of many partitions as one sequence: in causal order, complete, and with bounded waiting."""

from __future__ import annotations

from random import Random

import pytest

from shoal.crdt.dot import Dot, Origin, VersionVector
from shoal.node.watching.changelog import SLICE_MAX, WAITING_MAX, Merge, SeenChange
from shoal.protocol.requests import Change

LARGE = 10**9


def told(number: int, hlc: int, origin: int = 1) -> SeenChange:
    change = Change("s", "counter", f"{number}-{hlc}", "add", "", hlc, 0, number)
    return SeenChange(change, Dot(Origin(bytes([origin]) * 8), hlc), VersionVector(), b"")


def merged(logs: dict[int, list[int]], *, bytes_max: int = LARGE) -> tuple[list[int], int]:
    """The HLCs in the order of the merge, and the most changes that waited."""
    merge = Merge(logs, bytes_max=bytes_max)
    unread = {number: list(hlcs) for number, hlcs in logs.items()}
    given: list[int] = []
    most = 0
    while True:
        if (number := merge.hungry) is not None:
            limit = merge.slice
            found, unread[number] = unread[number][:limit], unread[number][limit:]
            merge.feed([told(number, hlc) for hlc in found], ends=len(found) < limit)
            most = max(most, len(list(merge.left())))
        elif (each := merge.take()) is not None:
            given.append(each.change.hlc)
        else:
            return given, most


@pytest.mark.answers("watchers-see-each-change-once")
@pytest.mark.parametrize("seed", range(30))
def test_changes_come_in_the_order_of_their_clocks(seed: int) -> None:
    random = Random(seed)
    hlcs = list(range(random.randrange(1, 3000)))
    logs: dict[int, list[int]] = {number: [] for number in range(random.choice([1, 2, 7, 200]))}
    for hlc in hlcs:
        logs[random.choice(list(logs))].append(hlc)
    assert merged(logs)[0] == hlcs


def test_waiting_changes_are_bounded_for_all_partitions() -> None:
    logs = {number: list(range(number, 20_000, 1024)) for number in range(1024)}
    given, most = merged(logs)
    assert given == list(range(20_000))
    assert most <= WAITING_MAX


def test_one_partition_is_read_in_whole_slices() -> None:
    merge = Merge([7], bytes_max=LARGE)
    assert merge.slice == SLICE_MAX


def test_past_the_bytes_one_operation_is_read_at_a_time() -> None:
    given, most = merged({number: list(range(number, 1000, 4)) for number in range(4)}, bytes_max=600)
    assert given == list(range(1000))
    assert most <= SLICE_MAX + 4


def test_a_partition_without_wanted_changes_is_read_to_its_end() -> None:
    merge = Merge([1, 2], bytes_max=LARGE)
    assert merge.hungry == 1
    merge.feed([told(1, 5)], ends=True)
    assert merge.hungry == 2
    merge.feed([], ends=False)
    assert merge.hungry == 2  # What comes before may still be there.
    merge.feed([told(2, 3)], ends=True)
    assert [each.change.hlc for each in (merge.take(), merge.take()) if each is not None] == [3, 5]
    assert merge.take() is None


def test_omitted_parts_are_named() -> None:
    merge = Merge([1, 2], bytes_max=LARGE)
    merge.feed([told(1, 5)], ends=True)
    assert [each.change.hlc for each in merge.left()] == [5]
    assert list(merge.unread()) == [2]
