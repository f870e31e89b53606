"""Trims: what is left of a journal is a function of the set of operations, and nothing goes that was not named."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.crdt.dot import COUNTER_BITS, HORIZON, NO_FLOOR, Dot, Floor, VersionVector
from shoal.crdt.rows import Rows, Stamp
from shoal.kinds.journal.state import events, journal, trimming
from shoal.kinds.journal.state.events import EVENT, Event, Issue
from shoal.kinds.journal.state.journal import Append, Conflict, Cursor
from shoal.kinds.journal.state.trimming import Retain, Trim
from tests.support.causal import Choose, Decide, Replica, check_converges, origin
from tests.support.examples import examples
from tests.support.retired import Past
from tests.support.rows import BuriedRows, DictRows
from tests.support.samples import chooser, fails_for_some_seed

Change = tuple[Append, bytes] | Trim | Retain


def apply(rows: Rows, stamp: Stamp, change: Change) -> None:
    if isinstance(change, Trim):
        trimming.apply(rows, stamp, change)
    elif isinstance(change, Retain):
        trimming.apply_rule(rows, stamp, change)
    else:
        journal.apply(rows, stamp, *change)


def everything(_issue: Issue, _count: int, _size: int) -> bool:
    return True


def deciding(choose: Choose) -> Decide:
    def decide(replica: Replica, _everyone: list[Replica]) -> list[Change]:
        if choose(3) == 0:
            cut = trimming.cut(replica.rows, replica.vector, everything, events_max=1 + choose(3))
            floor = Floor((1 + choose(8)) << COUNTER_BITS, (9 + choose(3)) << COUNTER_BITS) if choose(3) == 0 else NO_FLOOR
            return [Trim(cut.ends, floor)] if cut.ends else []
        if choose(8) == 0:
            return [Retain(events=1 + choose(3))]
        made: list[Change] = []
        for _ in range(1 + choose(2)):
            payload = bytes([choose(3)])
            made.append((Append(sha256(payload).digest(), (None, "a", "b")[choose(3)]), payload))
        return made

    return decide


def appends(replica: Replica) -> list[tuple[Stamp, Append, bytes]]:
    return [(at, *change) for operation in replica.applied for at, change in operation.stamped() if isinstance(change, tuple)]


def trimmed(replica: Replica) -> set[Dot]:
    """The twin of what goes: for each end that was named, its origin's appends up to there."""
    trims = [change for operation in replica.applied for change in operation.changes if isinstance(change, Trim)]
    ends = [events.dot_of(end) for trim in trims for end in trim.ends]
    return {
        at.dot
        for at, _, _ in appends(replica)
        if any(at.dot.origin == end.origin and at.dot.sequence <= end.sequence for end in ends)
    }


def left(replica: Replica) -> tuple[list[Event], list[Conflict]]:
    """The twin of what stays: the journal of the other appends alone."""
    gone = trimmed(replica)
    rows = DictRows()
    for at, append, payload in sorted(appends(replica), key=lambda made: (made[0].hlc, made[0].pack_position())):
        if at.dot not in gone:
            journal.apply(rows, at, append, payload)
    return [events.unpack(row[1:], stored) for row, stored in rows.scan(EVENT)], journal.conflicts(rows)


def check(choose: Choose) -> None:
    replica = check_converges(choose, apply, deciding(choose))[0]
    rows, gone = replica.rows, trimmed(replica)
    kept, conflicts = left(replica)
    assert [events.unpack(row[1:], stored) for row, stored in rows.scan(EVENT)] == kept
    assert journal.conflicts(rows) == conflicts
    floor, ends = trimming.ends(rows)
    assert all(events.hlc_of(end) > floor.hlc for end in ends)
    for at, append, payload in appends(replica):
        assert journal.payload_of(rows, at, append) == payload
        assert trimming.is_trimmed(rows, at.dot) <= (at.dot in gone)
        if at.hlc > floor.hlc:
            assert trimming.is_trimmed(rows, at.dot) == (at.dot in gone)
    if (totals := events.totals(rows)) is not None:
        assert totals == (len(kept), sum(len(stored) for _, stored in rows.scan(EVENT)))


@pytest.mark.answers("reader-misses-trimmed-events-whose-origin-is-forgotten")
@examples(150)
@given(st.data())
def test_the_rest_is_the_journal_no_trim_names(data: st.DataObject) -> None:
    check(chooser(data))


def whatever_sorts_below(ends: list[bytes]) -> VersionVector:
    return VersionVector({origin(number): 10**6 for number in range(1, 4)})


def only_events(_rows: Rows) -> list[events.KeyedAppend]:
    return []


remove = events.remove


def the_whole_key_goes(rows: Rows, key: str, gone: Callable[[events.KeyedAppend], bool]) -> list[events.KeyedAppend]:
    return remove(rows, key, lambda _: any(map(gone, events.claims_of(rows, key))))


def uncounted(rows: Rows, position: bytes) -> None:
    rows.delete(EVENT + position)


raise_to = trimming._raise


def once(rows: Rows, to: Floor) -> None:
    """An end that arrives later stays below the floor."""
    if to != NO_FLOOR:
        raise_to(rows, to)


@pytest.mark.parametrize(
    ("module", "name", "bug"),
    [
        (trimming, "covered", whatever_sorts_below),
        (events, "losers", only_events),
        (events, "remove", the_whole_key_goes),
        (events, "drop", uncounted),
        (trimming, "_raise", once),
    ],
)
def test_the_check_finds_a_planted_bug(
    monkeypatch: pytest.MonkeyPatch, module: object, name: str, bug: Callable[..., object]
) -> None:
    monkeypatch.setattr(module, name, bug)
    assert fails_for_some_seed(check)


# ── readers ───────────────────────────────────────────────────────────────────


def filled(events: int) -> Replica:
    replica = Replica(origin(1), apply)
    for number in range(events):
        payload = bytes([number])
        replica.issue([(Append(sha256(payload).digest()), payload)], wall_ms=number)
    return replica


def trim(replica: Replica, count: int) -> None:
    cut = trimming.cut(replica.rows, replica.vector, lambda _issue, before, _size: before < count, events_max=100)
    replica.issue([Trim(cut.ends)], wall_ms=99)


def page(replica: Replica, cursor: Cursor, limit: int) -> journal.Page:
    return journal.read(replica.rows, cursor, replica.vector, floor_hlc=None, limit=limit, bytes_max=10**6)


@pytest.mark.parametrize(("read", "missed"), [(1, True), (2, True), (3, False), (5, False)])
def test_a_reader_is_told_if_something_went_that_it_had_not_got(read: int, missed: bool) -> None:
    replica = filled(5)
    cursor = page(replica, Cursor(), read).cursor
    trim(replica, 3)
    assert (journal.missed(replica.rows, cursor, replica.vector) is not None) == missed


def test_a_reader_that_begins_is_told_nothing() -> None:
    replica = filled(5)
    trim(replica, 3)
    assert journal.missed(replica.rows, Cursor(), replica.vector) is None
    assert [event.payload for event in page(replica, Cursor(), 9).events] == [b"\x03", b"\x04"]


def test_a_late_event_below_a_trim_is_delivered() -> None:
    fast, slow = filled(3), Replica(origin(2), apply)
    early = slow.issue([(Append(sha256(b"late").digest()), b"late")], wall_ms=1)
    cursor = page(fast, Cursor(), 9).cursor
    trim(fast, 3)
    fast.receive([early])
    found = page(fast, cursor, 9)
    assert [(event.payload, event.late) for event in found.events] == [(b"late", True)]


def trimmed_by_three() -> tuple[Replica, list[bytes]]:
    """A journal of which one event of each of three origins was trimmed, in this order."""
    replica = Replica(origin(9), apply)
    for number in (1, 2, 3):
        other = Replica(origin(number), apply)
        replica.receive([other.issue([(Append(sha256(b"x").digest()), b"x")], wall_ms=10 * number)])
    cut = trimming.cut(replica.rows, replica.vector, everything, events_max=9)
    replica.issue([Trim(cut.ends)], wall_ms=40)
    return replica, trimming.ends(replica.rows)[1]


def hlc_at(wall_ms: int) -> int:
    return wall_ms << COUNTER_BITS


@pytest.mark.answers("trimmed-journal-keeps-a-row-for-each-opening")
@pytest.mark.parametrize(
    ("live", "remembered", "merged"),
    [((1, 2, 3), (), 0), ((2, 3), (), 1), ((3,), (), 2), ((1,), (), 3), ((3,), (2,), 1), ((2, 3), (1,), 0), ((), (), 3)],
)
def test_a_trim_merges_the_ends_of_origins_that_are_forgotten(
    live: tuple[int, ...], remembered: tuple[int, ...], merged: int
) -> None:
    """With them those of any that are older: a cursor tells whether a reader has got these too."""
    replica, ends = trimmed_by_three()
    past = Past({origin(number): hlc_at(60) for number in remembered}, hlc_at(50))
    here = VersionVector({origin(9): 1, **{origin(number): 1 for number in live}}).retire((), past)
    made = trimming.trim(replica.rows, here, [])
    assert made.floor == (Floor(hlc_at(10 * merged), hlc_at(50)) if merged else NO_FLOOR)
    trimming.apply(replica.rows, replica.applied[0].stamp, Trim(ends, made.floor))
    assert trimming.ends(replica.rows) == (made.floor, ends[merged:])


def test_a_replica_that_forgot_nothing_merges_nothing() -> None:
    replica, _ = trimmed_by_three()
    for past in (None, Past({origin(1): hlc_at(60)}, 0)):
        assert trimming.trim(replica.rows, VersionVector({origin(9): 1}).retire((), past), []).floor == NO_FLOOR


@pytest.mark.answers("reader-misses-trimmed-events-whose-origin-is-forgotten")
@pytest.mark.parametrize(
    ("cursor", "missed"),
    [
        (Cursor(VersionVector({HORIZON: hlc_at(50)})), False),
        (Cursor(VersionVector({HORIZON: hlc_at(51)})), False),
        (Cursor(VersionVector({HORIZON: hlc_at(49), origin(9): 1})), True),
        (Cursor(VersionVector({origin(1): 1, origin(2): 1, origin(3): 1})), True),
        (journal.from_position(hlc_at(31).to_bytes(8, "big") + bytes(26), VersionVector({HORIZON: hlc_at(50)})), False),
        (journal.from_position(hlc_at(29).to_bytes(8, "big") + bytes(26), VersionVector({HORIZON: hlc_at(50)})), True),
    ],
    ids=["got", "later", "before", "by origins that are forgotten", "swept", "swept in part"],
)
def test_a_reader_below_the_floor_is_told_unless_it_had_got_everything(cursor: Cursor, missed: bool) -> None:
    replica, ends = trimmed_by_three()
    trimming.apply(replica.rows, replica.applied[0].stamp, Trim(ends, Floor(hlc_at(30), hlc_at(50))))
    here = VersionVector({origin(9): 1}).retire((), Past({}, hlc_at(50)))
    assert journal.missed(replica.rows, cursor, here) == (hlc_at(30) if missed else None)


def test_an_operations_events_go_together() -> None:
    replica = Replica(origin(1), apply)
    replica.issue([(Append(sha256(b"x").digest()), b"x")] * 3, wall_ms=1)
    replica.issue([(Append(sha256(b"x").digest()), b"x")], wall_ms=2)
    cut = trimming.cut(replica.rows, replica.vector, everything, events_max=1)
    assert (cut.events, cut.more) == (3, True)


@pytest.mark.parametrize(
    "ends",
    [[], [b"short"], [bytes(8) + Dot(origin(1), 9).pack()], [bytes(8) + Dot(origin(1), n).pack() for n in (1, 2)]],
    ids=["nothing", "no place", "not applied", "an origin twice"],
)
def test_a_trim_that_no_node_would_make_is_refused(ends: list[bytes]) -> None:
    with pytest.raises(ValueError, match="it "):
        trimming.check(Trim(ends), VersionVector({origin(1): 3}), hlc=9)


@pytest.mark.parametrize("floor", [Floor(3, 9), Floor(3, 2), Floor(0, 3), Floor(-1, 3)])
def test_a_floor_that_no_node_would_choose_is_refused(floor: Floor) -> None:
    end = (1).to_bytes(8, "big") + Dot(origin(1), 3).pack()
    trimming.check(Trim([end], Floor(3, 8)), VersionVector({origin(1): 3}), hlc=9)
    with pytest.raises(ValueError, match="its floor"):
        trimming.check(Trim([end], floor), VersionVector({origin(1): 3}), hlc=9)


# ── the cost ──────────────────────────────────────────────────────────────────


def passed_by_trimming(count: int) -> int:
    """Rows that scans pass while all events of a journal go, eight in each operation, and are swept in the same pieces."""
    replica = filled(count)
    buried = BuriedRows()
    buried.rows = dict(replica.rows.rows)
    ends: list[bytes] = []
    last = b""
    for number in range(count // 8):
        cut = trimming.cut(buried, replica.vector, everything, events_max=8, after=last)
        assert cut.events == 8
        at = Stamp(Dot(origin(2), 1 + number), (1000 + number) << 16, 1000, replica.vector)
        trimming.apply(buried, at, Trim(cut.ends))
        ends, last = cut.ends, cut.last
    after: bytes | None = None
    while some := list(islice(trimming.swept(buried, ends, after=after), 8)):
        after = some[-1]
        for row in some:
            buried.delete(row)
    assert not list(buried.scan(events.EVENT)) + list(buried.scan(trimming.TRIMMED))
    return buried.passed


@pytest.mark.answers("maintenance-stalls-requests")
def test_trimming_and_sweeping_pass_no_row_that_went_before() -> None:
    one, two = passed_by_trimming(96), passed_by_trimming(192)
    assert two <= 2.2 * one
    assert two <= 7 * 192
