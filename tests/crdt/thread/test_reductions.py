"""Snapshots of reducers: replicas agree on them, and one that may be used holds what a replay would make."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.crdt.dot import VersionVector
from shoal.crdt.rows import Rows, Stamp
from shoal.kinds.journal.state import events, journal, readers, trimming
from shoal.kinds.journal.state.events import EVENT, PLACE_BYTES
from shoal.kinds.journal.state.journal import Append, Cursor
from shoal.kinds.journal.state.readers import Reduce, Snapshot
from shoal.kinds.journal.state.trimming import Trim
from tests.support.causal import Choose, Decide, Replica, check_converges, origin
from tests.support.examples import examples
from tests.support.rows import DictRows
from tests.support.samples import chooser, fails_for_some_seed

Change = tuple[bytes, str | None] | Reduce  # An event's payload and key, or a snapshot.


def apply(rows: Rows, stamp: Stamp, change: Change) -> None:
    if isinstance(change, Reduce):
        readers.apply_reduction(rows, stamp, change)
    else:
        payload, key = change
        journal.apply(rows, stamp, Append(payload.rjust(32), key), payload)


def folded(replica: Replica, until: bytes) -> bytes:
    """A reducer that minds both order and number: all payloads, joined."""
    rows = replica.rows.scan(EVENT)
    return b"".join(events.unpack(row[1:], stored).payload for row, stored in rows if row[1:] <= until)


def deciding(choose: Choose) -> Decide:
    def decide(replica: Replica, _all: list[Replica]) -> list[Change]:
        positions = [row[1:] for row, _ in replica.rows.scan(EVENT)]
        if not positions or choose(3):
            return [(bytes([choose(3)]), (None, "a", "b")[choose(3)])]
        at = positions[choose(len(positions))]
        return [Reduce("sum", choose(2), at, replica.vector.pack(), folded(replica, at))]

    return decide


def check(choose: Choose) -> None:
    for replica in check_converges(choose, apply, deciding(choose)):
        for version in range(2):
            for found in readers.usable(replica.rows, "sum", version, replica.vector):
                unseen = [made.stamp.hlc for made in replica.applied if not found.vector.covers(made.stamp.dot)]
                floor = min(unseen, default=None)
                if readers.holds(replica.rows, found, replica.vector, floor_hlc=floor, scan_rows_max=10**6):
                    assert found.value == folded(replica, found.position)


@examples(150)
@given(st.data())
def test_replicas_agree_and_what_may_be_used_is_what_a_replay_makes(data: st.DataObject) -> None:
    check(chooser(data))


def always(*_: Any, **__: Any) -> bool:
    return True


def the_last_to_arrive_stays(_stored: bytes) -> int:
    return 0


@pytest.mark.parametrize(
    ("module", "name", "bug"),
    [
        (readers, "holds", always),
        (readers, "_rank", the_last_to_arrive_stays),
        (events, "contested", lambda _: Cursor().vector),
    ],
)
def test_the_check_finds_a_planted_bug(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str, bug: Callable[..., Any]
) -> None:
    monkeypatch.setattr(module, name, bug)
    assert fails_for_some_seed(check, seeds=1500)


def test_only_the_last_few_positions_of_the_greatest_version_are_kept() -> None:
    replica = Replica(origin(1), apply)
    for number in range(1, 12):
        replica.issue([(b"x", None)], wall_ms=number)
    positions = [row[1:] for row, _ in replica.rows.scan(EVENT)]
    for position in positions:
        replica.issue([Reduce("sum", 3, position, replica.vector.pack(), b"")], wall_ms=20)
    replica.issue([Reduce("sum", 2, positions[0], replica.vector.pack(), b"")], wall_ms=20)
    kept = [found.position for found in readers.usable(replica.rows, "sum", 3, replica.vector)]
    assert kept == positions[::-1][: readers.SNAPSHOTS_KEPT]
    assert list(readers.usable(replica.rows, "sum", 2, replica.vector)) == []
    assert [found.position for found in readers.usable(replica.rows, "sum", 3, replica.vector, until=positions[-2])] == kept[1:]
    assert readers.reducers(replica.rows) == {"sum"}


def test_a_snapshot_that_lacks_a_trimmed_event_is_not_used() -> None:
    replica = Replica(origin(1), apply)
    for number in (1, 2):
        replica.issue([(b"x", None)], wall_ms=number)
    first, second = [row[1:] for row, _ in replica.rows.scan(EVENT)]
    replica.issue([Reduce("sum", 1, second, VersionVector().pack(), b"")], wall_ms=3)
    trimming.apply(replica.rows, replica.applied[0].stamp, Trim([first[:PLACE_BYTES]]))
    assert list(readers.usable(replica.rows, "sum", 1, replica.vector)) == []


def test_a_snapshot_does_not_hold_where_too_many_rows_would_have_to_be_looked_at() -> None:
    replica = Replica(origin(1), apply)
    for number in range(1, 6):
        replica.issue([(b"x", None)], wall_ms=number)
    last = [row[1:] for row, _ in replica.rows.scan(EVENT)][-1]
    found = Snapshot(last, replica.vector, b"")
    for rows_max, expected in ((4, False), (5, True)):
        assert readers.holds(replica.rows, found, replica.vector, floor_hlc=None, scan_rows_max=rows_max) is expected


def test_reducers_with_names_that_begin_alike_keep_their_own() -> None:
    rows = DictRows()
    replica = Replica(origin(1), apply)
    replica.issue([(b"x", None)], wall_ms=1)
    [position] = [row[1:] for row, _ in replica.rows.scan(EVENT)]
    stamp = replica.applied[0].stamp
    for number, name in enumerate(["a", "ab"]):
        readers.apply_reduction(rows, stamp, Reduce(name, number, position, b"", name.encode()))
    assert [found.value for found in readers.usable(rows, "a", 0, VersionVector())] == [b"a"]
    assert [found.value for found in readers.usable(rows, "ab", 1, VersionVector())] == [b"ab"]
