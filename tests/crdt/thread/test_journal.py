"""Journals: one order everywhere, each key once, and readers that miss nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.crdt.dot import Dot, VersionVector
from shoal.crdt.rows import Rows, Stamp
from shoal.errors import InvalidValue, StoreCorrupt
from shoal.kinds.journal.state import events as claims
from shoal.kinds.journal.state import journal
from shoal.kinds.journal.state.events import EVENT, Event, KeyedAppend
from shoal.kinds.journal.state.journal import Append, Conflict, Cursor
from tests.support.causal import Choose, Decide, Operation, Replica, check_converges, history, origin
from tests.support.examples import examples
from tests.support.rows import DictRows
from tests.support.samples import chooser, fails_for_some_seed

Change = tuple[Append, bytes]  # An append as it travels, its payload beside it.


def change(payload: bytes, key: str | None = None) -> Change:
    return Append(sha256(payload).digest(), key), payload


def apply(rows: Rows, stamp: Stamp, made: Change) -> None:
    journal.apply(rows, stamp, *made)


def deciding(choose: Choose, keys: tuple[str | None, ...] = (None, "a", "b", "ab")) -> Decide:
    def decide(_replica: Replica, _all: list[Replica]) -> list[Change]:
        return [change(bytes([choose(3)]), keys[choose(len(keys))]) for _ in range(1 + choose(2))]

    return decide


def stamped(operations: list[Operation]) -> list[tuple[Stamp, Append, bytes]]:
    return [(at, append, payload) for operation in operations for at, (append, payload) in operation.stamped()]


def twin(operations: list[Operation]) -> tuple[list[Event], list[Conflict]]:
    """Events and conflicts of all appends at once."""
    events, conflicts = [], []
    by_rank = sorted(stamped(operations), key=lambda made: (made[0].dot, made[0].nth))
    winner: dict[str, bytes] = {}
    claimed: set[tuple[str, bytes]] = set()
    for at, append, payload in by_rank:
        position = at.pack_position()
        if append.key is None or append.key not in winner:
            events.append(Event(position, append.key, at.wall_ms, payload))
        elif (append.key, payload) not in claimed:
            conflicts.append(Conflict(append.key, position, at.wall_ms, payload))
        if append.key is not None:
            winner.setdefault(append.key, position)
            claimed.add((append.key, payload))
    return sorted(events), sorted(conflicts)


def everything(replica: Replica) -> list[Event]:
    page = journal.read(replica.rows, Cursor(), replica.vector, floor_hlc=None, limit=10**6, bytes_max=10**9)
    assert not page.more
    return page.events


def check(choose: Choose) -> None:
    replica = check_converges(choose, apply, deciding(choose))[0]
    events, conflicts = twin(replica.applied)
    assert everything(replica) == events
    assert sorted(journal.conflicts(replica.rows)) == conflicts
    for at, append, payload in stamped(replica.applied):
        assert journal.payload_of(replica.rows, at, append) == payload


@pytest.mark.answers("applying-commutes")
@examples(60)
@given(st.data())
def test_replicas_hold_the_same_events_in_any_order_packet_and_repetition(data: st.DataObject) -> None:
    check(chooser(data))


def first_to_arrive_counts(rows: Rows, key: str, made: list[KeyedAppend]) -> None:
    for claim in made[-1:]:
        claims._lose(rows, claim, claim._replace(digest=b""))


def loser_is_forgotten(*_arguments: object) -> None:
    pass


def ranked_by_clock(position: bytes) -> bytes:
    return position


@pytest.mark.answers("data-type-whose-result-depends-on-the-order")
@pytest.mark.parametrize(
    ("function", "bug"),
    [("_put", first_to_arrive_counts), ("_lose", loser_is_forgotten), ("_rank", ranked_by_clock)],
)
def test_the_check_finds_a_planted_bug(monkeypatch: pytest.MonkeyPatch, function: str, bug: Callable[..., None]) -> None:
    monkeypatch.setattr(claims, function, bug)
    assert fails_for_some_seed(check)


# ── reading ───────────────────────────────────────────────────────────────────


class Reader:
    """Reads page by page; each page's cursor goes through bytes, as over the wire."""

    def __init__(self) -> None:
        self.cursor = b""
        self.got: list[Event] = []

    def read(self, replica: Replica, *, limit: int = 100, scan_rows_max: int = 100, bytes_max: int = 10**9) -> bool:
        cursor = Cursor.unpack(self.cursor)
        page = journal.read(
            replica.rows,
            cursor,
            replica.vector,
            floor_hlc=floor(replica, cursor),
            limit=limit,
            bytes_max=bytes_max,
            scan_rows_max=scan_rows_max,
        )
        assert len(page.events) <= limit
        self.got.extend(page.events)
        self.cursor = page.cursor.pack()
        return page.more

    def read_all(self, replica: Replica) -> None:
        while self.read(replica):
            pass


def floor(replica: Replica, cursor: Cursor) -> int | None:
    """What the node finds in its log."""
    return min((made.stamp.hlc for made in replica.applied if not cursor.vector.covers(made.stamp.dot)), default=None)


def check_reader(choose: Choose) -> None:
    """A reader that pages while operations arrive gets each event once, in order but for those marked late."""
    operations = history(choose, apply, deciding(choose, (None,)))[0].applied
    replica, reader = Replica(origin(9), apply), Reader()
    waiting = list(operations)
    while waiting:
        replica.receive([waiting.pop(choose(len(waiting)))])
        for _ in range(choose(3)):
            before = len(reader.got)
            reader.read(replica, limit=1 + choose(2), scan_rows_max=1 + choose(4))
            assert reader.got[before:] == sorted(reader.got[before:])
    reader.read_all(replica)
    assert sorted(event._replace(late=False) for event in reader.got) == everything(replica)
    for number, event in enumerate(reader.got):
        assert event.late == any(earlier.position > event.position for earlier in reader.got[:number])


@examples(60)
@given(st.data())
def test_a_reader_gets_every_event_once_while_operations_arrive(data: st.DataObject) -> None:
    check_reader(chooser(data))


@pytest.mark.answers("journal-reader-that-skips-events")
def test_the_check_of_readers_finds_a_cursor_that_adopts_what_arrived_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_meet", lambda _target, vector: vector)
    assert fails_for_some_seed(check_reader)


@pytest.mark.answers("journal-reader-that-skips-events")
def test_the_check_of_readers_finds_a_start_that_ignores_late_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_start", lambda cursor, _floor: EVENT + cursor.greatest if cursor.greatest else None)
    assert fails_for_some_seed(check_reader)


@examples(40)
@given(st.data())
def test_a_reader_that_moves_between_replicas_misses_no_event(data: st.DataObject) -> None:
    choose = chooser(data)
    operations = history(choose, apply, deciding(choose))[0].applied
    replicas, reader = [Replica(origin(8), apply), Replica(origin(9), apply)], Reader()
    for _ in range(6):
        replica = replicas[choose(2)]
        replica.receive(operations[: choose(len(operations) + 1)])
        reader.read(replica, limit=1 + choose(2), scan_rows_max=1 + choose(4))
    for replica in replicas:
        replica.receive(operations)
    reader.read_all(replicas[choose(2)])
    assert {event.position for event in reader.got} >= {event.position for event in everything(replicas[0])}


def filled(events: int, *, payload: bytes = b"x") -> Replica:
    replica = Replica(origin(1), apply)
    for number in range(events):
        replica.issue([change(payload)], wall_ms=number)
    return replica


def test_a_reader_that_is_up_to_date_gets_nothing_and_looks_at_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    replica, reader = filled(3), Reader()
    reader.read_all(replica)
    monkeypatch.setattr(replica.rows, "scan", None)
    assert not reader.read(replica)
    assert len(reader.got) == 3


def test_where_nothing_is_late_only_rows_after_the_position_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    replica, reader = filled(30), Reader()
    reader.read_all(replica)
    replica.issue([change(b"new")], wall_ms=99)
    looked_at = 0
    scan = replica.rows.scan

    def counting(prefix: bytes, /, *, after: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        nonlocal looked_at
        for row in scan(prefix, after=after):
            looked_at += 1
            yield row

    monkeypatch.setattr(replica.rows, "scan", counting)
    reader.read_all(replica)
    assert [event.payload for event in reader.got[30:]] == [b"new"]
    assert looked_at == 1


def test_a_page_ends_with_the_event_that_reaches_its_bytes() -> None:
    replica, reader = filled(5, payload=b"x" * 100), Reader()
    assert reader.read(replica, bytes_max=150)
    assert len(reader.got) == 2
    assert reader.read(replica, bytes_max=1)
    assert len(reader.got) == 3


def test_the_last_page_says_that_there_is_no_more() -> None:
    replica, reader = filled(4), Reader()
    assert reader.read(replica, limit=2)
    assert not reader.read(replica, limit=2)


def test_an_event_that_sorts_before_a_delivered_one_is_marked_late() -> None:
    fast, slow = filled(1), Replica(origin(2), apply)
    fast.issue([change(b"fast")], wall_ms=1000)
    early = slow.issue([change(b"slow")], wall_ms=500)
    reader = Reader()
    reader.read_all(fast)
    fast.receive([early])
    reader.read_all(fast)
    assert [(event.payload, event.late) for event in reader.got] == [(b"x", False), (b"fast", False), (b"slow", True)]


def test_an_event_taken_over_by_a_lesser_dot_is_delivered_again_at_its_new_position() -> None:
    here, there = Replica(origin(2), apply), Replica(origin(1), apply)
    here.issue([change(b"mine", "k")], wall_ms=1)
    reader = Reader()
    reader.read_all(here)
    here.receive([there.issue([change(b"theirs", "k")], wall_ms=2)])
    reader.read_all(here)
    assert [event.payload for event in reader.got] == [b"mine", b"theirs"]
    assert [conflict.payload for conflict in journal.conflicts(here.rows)] == [b"mine"]


def test_a_cursor_survives_the_way_through_bytes() -> None:
    replica = filled(3)
    page = journal.read(replica.rows, Cursor(), replica.vector, floor_hlc=None, limit=1, bytes_max=1)
    assert page.cursor.sweep is not None
    assert Cursor.unpack(page.cursor.pack()) == page.cursor
    assert Cursor.unpack(b"") == Cursor() == Cursor.unpack(Cursor().pack())


@examples(100)
@given(st.one_of(st.binary(min_size=1, max_size=40), st.tuples(st.integers(0, 20), st.integers(0, 255))))
def test_bytes_that_are_no_cursor_are_refused(damage: bytes | tuple[int, int]) -> None:
    good = Cursor(VersionVector({origin(1): 3}), b"p" * 34).pack()
    packed = damage if isinstance(damage, bytes) else good[: damage[0]] + bytes([damage[1]]) + good[damage[0] + 1 :]
    try:
        cursor = Cursor.unpack(packed)
    except InvalidValue as error:
        assert "cursor" in error.message  # noqa: PT017 (either outcome is right; this is the other)
        return
    assert Cursor.unpack(cursor.pack()) == cursor


@pytest.mark.parametrize("number", [0, 2, 99])
def test_a_cursor_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(journal, "_CURSOR_VERSION", number)
    packed = Cursor().pack()
    monkeypatch.undo()
    with pytest.raises(InvalidValue, match="newer version"):
        Cursor.unpack(packed)


# ── keys ──────────────────────────────────────────────────────────────────────


def stamp(number: int, *, hlc: int = 1, nth: int = 0) -> Stamp:
    return Stamp(Dot(origin(number), 1), hlc, 1, VersionVector(), nth)


def test_a_key_is_found_with_its_position_and_digest() -> None:
    rows = DictRows()
    apply(rows, stamp(1), change(b"p", "k"))
    assert claims.find_claim(rows, "k") == (stamp(1).pack_position(), sha256(b"p").digest())
    assert claims.find_claim(rows, "kk") is None


@pytest.mark.answers("one-node-with-a-fast-clock-wins-every-conflict")
def test_the_least_dot_is_the_event_even_with_a_later_clock() -> None:
    rows = DictRows()
    apply(rows, stamp(2, hlc=1), change(b"early clock", "k"))
    apply(rows, stamp(1, hlc=9), change(b"least dot", "k"))
    found = claims.find_claim(rows, "k")
    assert found is not None
    assert found.position == stamp(1, hlc=9).pack_position()


def test_a_retry_elsewhere_leaves_one_event_and_no_conflict() -> None:
    rows = DictRows()
    for number in (2, 1, 3):
        apply(rows, stamp(number), change(b"p", "k"))
    assert len(list(rows.scan(EVENT))) == 1
    assert journal.conflicts(rows) == []


def test_a_payload_that_is_missing_is_corruption() -> None:
    with pytest.raises(StoreCorrupt):
        journal.payload_of(DictRows(), stamp(1), Append(bytes(32)))
