"""Consumers' cursors: replicas agree, nothing that was not acknowledged is skipped, and a reset holds."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.crdt.dot import Dot, VersionVector
from shoal.crdt.rows import Rows, Stamp
from shoal.kinds.journal.state import journal, readers
from shoal.kinds.journal.state.events import EVENT
from shoal.kinds.journal.state.journal import Append, Cursor, Sweep
from shoal.kinds.journal.state.readers import Ack
from tests.support.causal import Choose, Decide, Replica, check_converges, origin
from tests.support.examples import examples
from tests.support.rows import DictRows
from tests.support.samples import chooser, fails_for_some_seed

Change = Ack | bytes  # An acknowledgement, or an event's payload.


def apply(rows: Rows, stamp: Stamp, change: Change) -> None:
    if isinstance(change, bytes):
        journal.apply(rows, stamp, Append(bytes(32)), change)
    else:
        readers.apply_cursor(rows, stamp, change)


def reader(choose: Choose, got: dict[tuple[int, bytes], None] | None = None) -> Decide:
    """Replicas append, and read on from the consumer's cursor and acknowledge what they got; now and then one resets."""

    def decide(replica: Replica, _all: list[Replica]) -> list[Change]:
        what = choose(8)
        if what < 4:
            return [bytes([choose(5)])]
        found = readers.find_cursor(replica.rows, "c")
        if what == 4:
            return [Ack("c", found.generation + 1, Cursor().pack())]
        page = journal.read(replica.rows, found.cursor, replica.vector, floor_hlc=None, limit=1 + choose(3), bytes_max=10**6)
        cursors = list(page.cursors())
        for event in page.events:
            if got is not None:
                got[found.generation, event.position] = None
        return [Ack("c", found.generation, (cursors[-1] if cursors else page.cursor).pack())]

    return decide


def check(choose: Choose) -> None:
    """What is never delivered again was delivered: the rest and what was got are all there is."""
    got: dict[tuple[int, bytes], None] = {}
    replica = check_converges(choose, apply, reader(choose, got))[0]
    found = readers.find_cursor(replica.rows, "c")
    rest = journal.read(replica.rows, found.cursor, replica.vector, floor_hlc=None, limit=10**6, bytes_max=10**9)
    events = [event.position for event in rest.events]
    if rest.more:
        again = journal.read(replica.rows, rest.cursor, replica.vector, floor_hlc=None, limit=10**6, bytes_max=10**9)
        events += [event.position for event in again.events]
    left, scanned, counted = journal.behind(replica.rows, found.cursor, replica.vector, floor_hlc=None, scan_rows_max=10**6)
    assert (left, counted) == (len(events), True)
    assert scanned >= left
    everything = {row[1:] for row, _ in replica.rows.scan(EVENT)}
    assert {position for generation, position in got if generation == found.generation} | set(events) == everything


@examples(80)
@given(st.data())
def test_replicas_agree_on_a_cursor_and_nothing_is_skipped(data: st.DataObject) -> None:
    check(chooser(data))


def the_last_to_arrive_counts(_one: Cursor, other: Cursor) -> Cursor:
    return other


def sweeps_are_joined(one: Cursor, other: Cursor) -> Cursor:
    sweeps = [cursor.sweep for cursor in (one, other) if cursor.sweep is not None]
    target, after = VersionVector(), b""
    for sweep in sweeps:
        target, after = target.join(sweep.target), max(after, sweep.after)
    joined = Sweep(target, after) if sweeps else None
    return Cursor(one.vector.join(other.vector), max(one.greatest, other.greatest), joined)


def a_dominated_sweep_is_dropped(one: Cursor, other: Cursor) -> Cursor:
    joined = original_join(one, other)
    dropped = joined.sweep is not None and joined.vector.dominates(joined.sweep.target)
    return joined._replace(sweep=None) if dropped else joined


original_join = journal.join


@pytest.mark.parametrize("bug", [the_last_to_arrive_counts, sweeps_are_joined])
def test_the_check_finds_a_planted_bug(monkeypatch: pytest.MonkeyPatch, bug: Callable[..., Cursor]) -> None:
    monkeypatch.setattr(journal, "join", bug)
    assert fails_for_some_seed(check)


vectors = st.dictionaries(st.integers(1, 3).map(origin), st.integers(1, 3), max_size=3).map(VersionVector)
positions = st.integers(0, 3).map(lambda number: bytes([number]) * 34)
cursors = st.builds(Cursor, vectors, positions, st.none() | st.builds(Sweep, vectors, positions))


def check_lattice(one: Cursor, two: Cursor, three: Cursor) -> None:
    assert journal.join(one, two) == journal.join(two, one)
    assert journal.join(journal.join(one, two), three) == journal.join(one, journal.join(two, three))
    assert journal.join(journal.join(one, two), two) == journal.join(one, two)


@examples(300)
@given(cursors, cursors, cursors)
def test_cursors_are_a_semilattice(one: Cursor, two: Cursor, three: Cursor) -> None:
    check_lattice(one, two, three)


def test_dropping_a_sweep_that_is_done_would_not_be_associative(monkeypatch: pytest.MonkeyPatch) -> None:
    low, high = VersionVector({origin(1): 1}), VersionVector({origin(2): 2})
    one, two, three = Cursor(sweep=Sweep(low, b"a" * 34)), Cursor(sweep=Sweep(high, b"b" * 34)), Cursor(high)
    check_lattice(one, two, three)
    monkeypatch.setattr(journal, "join", a_dominated_sweep_is_dropped)
    with pytest.raises(AssertionError):
        check_lattice(one, two, three)


def stamp(number: int) -> Stamp:
    return Stamp(Dot(origin(1), number), number, 1000 + number, VersionVector())


def test_an_acknowledgement_of_before_a_reset_does_not_undo_it() -> None:
    rows = DictRows()
    far = Cursor(VersionVector({origin(1): 9}), b"z" * 34)
    for number, ack in enumerate([Ack("c", 0, far.pack()), Ack("c", 1, Cursor().pack()), Ack("c", 0, far.pack())], 1):
        readers.apply_cursor(rows, stamp(number), ack)
    assert readers.find_cursor(rows, "c") == ("c", 1, 1002, Cursor())


def test_consumers_are_listed_by_name_each_with_its_own_cursor() -> None:
    rows = DictRows()
    for number, name in enumerate(["b", "a", "ab"], 1):
        readers.apply_cursor(rows, stamp(number), Ack(name, 0, Cursor(VersionVector({origin(1): number})).pack()))
    assert [found.name for found in readers.consumers(rows)] == ["a", "ab", "b"]
    assert [found.name for found in readers.consumers(rows, after="a")] == ["ab", "b"]
    assert readers.find_cursor(rows, "b").cursor.vector == VersionVector({origin(1): 1})


def test_a_cursor_is_clipped_to_what_was_applied() -> None:
    cursor = Cursor(VersionVector({origin(1): 9}), b"z" * 34, Sweep(VersionVector({origin(2): 5, origin(3): 1}), b"y" * 34))
    applied = VersionVector({origin(1): 3, origin(2): 5})
    clipped = journal.clipped(cursor, applied)
    assert clipped.vector == VersionVector({origin(1): 3})
    assert clipped.sweep == Sweep(VersionVector({origin(2): 5}), b"y" * 34)
