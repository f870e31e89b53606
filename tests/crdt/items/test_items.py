"""Items: adding wins, what was seen is replaced, and every replica keeps the same rows."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.crdt.dot import Dot, VersionVector
from shoal.crdt.rows import Rows, Stamp
from shoal.kinds.items import state as items
from shoal.kinds.items.state import NEVER, Delete, Expire, Put, Refresh, Refreshed, StoredItem
from tests.support.causal import Apply, Choose, Decide, Operation, Replica, check_converges, origin
from tests.support.examples import examples
from tests.support.rows import DictRows
from tests.support.samples import chooser, fails_for_some_seed

PATHS: list[tuple[tuple[str, ...], str]] = [((), "k"), (("u",), "k"), (("u",), "kk"), (("u", "v"), "k"), (("uu",), "k")]
TTLS = [NEVER, NEVER, 5, 9]
APPLY = {Put: items.apply_put, Delete: items.apply_delete, Refresh: items.apply_refresh, Expire: items.apply_expire}

Change = Put | Delete | Refresh | Expire


def apply(rows: Rows, stamp: Stamp, change: Change) -> None:
    APPLY[type(change)](rows, stamp, change)  # type: ignore[operator]


def deciding(choose: Choose) -> Decide:
    def seen_by(replica: Replica, path: tuple[tuple[str, ...], str]) -> items.Seen:
        found = items.find(replica.rows, *path)
        return () if found is None else found.seen

    def decide(replica: Replica, _everyone: list[Replica]) -> list[Change]:
        return [change(replica) for _ in range(1 + choose(2))]

    def change(replica: Replica) -> Change:
        path = PATHS[choose(len(PATHS))]
        match choose(6):
            case 0:
                return Delete(*path, seen_by(replica, path))
            case 1:
                paths = [PATHS[choose(len(PATHS))] for _ in range(1 + choose(2))]
                return Refresh(tuple(Refreshed(*path, seen_by(replica, path), 5 + choose(20)) for path in paths))
            case 2:
                due = items.expired(replica.rows, 4 + choose(12), limit=3)
                return Expire(tuple(Delete(item.rest, item.key, item.seen) for item in due))
            case _:
                ttl = TTLS[choose(len(TTLS))]
                request = [None, None, "r1", "r2"][choose(4)]
                expires = NEVER if ttl == NEVER else ttl + choose(5)
                vectors = tuple(bytes([nth]) * 4 for nth in range(max(0, choose(4) - 1)))
                return Put(*path, bytes([choose(3)]), seen_by(replica, path), choose(9), ttl, expires, request, vectors)

    return decide


@dataclass(frozen=True)
class Live:
    dot: Dot
    value: bytes
    expires_ms: int
    vectors: tuple[bytes, ...]


def alive(operations: list[Operation]) -> dict[tuple[tuple[str, ...], str], set[Live]]:
    """The twin: of all puts at once, those that no operation names, and the greatest expiry that any gave."""
    stamped = [(at, change) for operation in operations for at, change in operation.stamped()]
    removed: set[tuple[tuple[tuple[str, ...], str], Dot]] = set()
    replaced: set[tuple[tuple[tuple[str, ...], str], Dot, int]] = set()
    refreshed: dict[tuple[tuple[tuple[str, ...], str], Dot, int], int] = {}
    for at, change in stamped:
        for part in change.items if isinstance(change, Expire | Refresh) else (change,):
            path = (part.rest, part.key)
            for name in part.seen:
                if not isinstance(change, Refresh):
                    removed.add((path, Dot(*name)))
            if not isinstance(change, Refresh):
                replaced.update((path, at.dot, nth) for nth in range(at.nth))
    for _, change in stamped:
        if isinstance(change, Refresh):
            for part in change.items:
                for name in part.seen:
                    for put_at, put in stamped:
                        if isinstance(put, Put) and put_at.dot == name and (put.rest, put.key) == (part.rest, part.key):
                            place = ((part.rest, part.key), put_at.dot, put_at.nth)
                            refreshed[place] = max(refreshed.get(place, 0), part.expires_ms)
    found: dict[tuple[tuple[str, ...], str], set[Live]] = {}
    for at, put in stamped:
        if not isinstance(put, Put):
            continue
        path = (put.rest, put.key)
        if (path, at.dot) in removed or (path, at.dot, at.nth) in replaced:
            continue
        later = refreshed.get((path, at.dot, at.nth), 0) if put.ttl_ms != NEVER else 0
        found.setdefault(path, set()).add(Live(at.dot, put.value, max(put.expires_ms, later), put.vectors))
    return found


def check(choose: Choose, apply: Apply = apply) -> None:
    replica = check_converges(choose, apply, deciding(choose))[0]
    expected = alive(replica.applied)
    found = {(item.rest, item.key): item for _, _, item in items.below(replica.rows, ())}
    assert found.keys() == expected.keys()
    for path, live in expected.items():
        assert set(found[path].seen) == {tuple(entry.dot) for entry in live}
        times = {entry.expires_ms for entry in live}
        assert found[path].expires_ms == (NEVER if NEVER in times else max(times))
        assert items.find(replica.rows, *path) == found[path]
        of_entries = {entry.dot: entry.vectors for entry in live}
        for entry in found[path].entries:
            assert items.vectors_of(replica.rows, items.path_of(*path), entry) == of_entries[entry.dot]
    paths = [items.path_of(*path) for path, live in expected.items() if any(entry.vectors for entry in live)]
    assert [path for path, _ in items.with_vectors(replica.rows, ())] == sorted(paths)
    for after in paths:
        assert [path for path, _ in items.with_vectors(replica.rows, (), after=after)] == sorted(
            path for path in paths if path > after
        )
    stored = [position for _, found in items.with_vectors(replica.rows, ()) for position in found]
    assert len(stored) == sum(bool(entry.vectors) for live in expected.values() for entry in live)
    due = {(item.rest, item.key) for item in items.expired(replica.rows, 10**9, limit=100)}
    assert due == {path for path, item in found.items() if item.expires_ms != NEVER}


@examples(150)
@given(st.data())
def test_replicas_keep_the_same_items_as_a_twin_that_sees_all_changes(data: st.DataObject) -> None:
    check(chooser(data))


def putting(rows: Rows, stamp: Stamp, change: Change, keep: bool) -> None:
    if isinstance(change, Put):
        path = items.path_of(change.rest, change.key)
        before = items._entries(rows, path)
        entry = StoredItem(
            stamp.pack_position(), stamp.wall_ms, 0, change.ttl_ms, change.expires_ms, change.request, change.value
        )
        items._store(rows, path, before, [*(before if keep else []), entry])
    else:
        apply(rows, stamp, change)


def seen_entries_stay(rows: Rows, stamp: Stamp, change: Change) -> None:
    putting(rows, stamp, change, keep=True)


def last_to_arrive_wins(rows: Rows, stamp: Stamp, change: Change) -> None:
    putting(rows, stamp, change, keep=False)


def delete_takes_all(rows: Rows, stamp: Stamp, change: Change) -> None:
    if isinstance(change, Delete):
        path = items.path_of(change.rest, change.key)
        items._store(rows, path, items._entries(rows, path), [])
    else:
        apply(rows, stamp, change)


def last_refresh_wins(rows: Rows, stamp: Stamp, change: Change) -> None:
    if not isinstance(change, Refresh):
        apply(rows, stamp, change)
        return
    for part in change.items:
        path = items.path_of(part.rest, part.key)
        before = items._entries(rows, path)
        after = [StoredItem(e.position, e.wall_ms, e.created_ms, e.ttl_ms, part.expires_ms, e.request, e.value) for e in before]
        items._store(rows, path, before, after)


@pytest.mark.parametrize("bug", [seen_entries_stay, last_to_arrive_wins, delete_takes_all, last_refresh_wins])
def test_the_check_finds_a_planted_bug(bug: Apply) -> None:
    assert fails_for_some_seed(lambda choose: check(choose, bug))


def stamp(number: int, sequence: int = 1, *, hlc: int = 1, nth: int = 0) -> Stamp:
    return Stamp(Dot(origin(number), sequence), hlc, 1000 + hlc, VersionVector(), nth)


def put(value: bytes, *, seen: items.Seen = (), expires_ms: int = NEVER, request: str | None = None) -> Put:
    return Put(("u",), "k", value, seen, 1, expires_ms, expires_ms, request)


def the_item(rows: Rows) -> items.Item:
    found = items.find(rows, ("u",), "k")
    assert found is not None
    return found


def test_a_put_that_a_delete_has_not_seen_stays() -> None:
    rows = DictRows()
    items.apply_put(rows, stamp(1), put(b"old"))
    items.apply_put(rows, stamp(2), put(b"new"))
    items.apply_delete(rows, stamp(3), Delete(("u",), "k", (stamp(1).dot,)))
    assert [entry.value for entry in the_item(rows).entries] == [b"new"]


def test_of_concurrent_puts_the_greatest_time_is_the_value_and_the_others_are_siblings() -> None:
    rows = DictRows()
    items.apply_put(rows, stamp(2, hlc=9), put(b"latest"))
    items.apply_put(rows, stamp(1, hlc=5), put(b"sibling"))
    assert [entry.value for entry in the_item(rows).entries] == [b"latest", b"sibling"]


def test_of_entries_that_one_request_made_the_least_dots_is_shown() -> None:
    rows = DictRows()
    items.apply_put(rows, stamp(2, hlc=9), put(b"v", request="r"))
    items.apply_put(rows, stamp(1, hlc=5), put(b"v", request="r"))
    assert [entry.dot for entry in the_item(rows).entries] == [stamp(1).dot]
    assert len(the_item(rows).seen) == 2


@pytest.mark.parametrize(("one", "other", "expected"), [(5, 9, 9), (9, 5, 9), (5, NEVER, NEVER), (NEVER, NEVER, NEVER)])
def test_of_concurrent_times_to_live_the_longest_counts(one: int, other: int, expected: int) -> None:
    rows = DictRows()
    items.apply_put(rows, stamp(1), put(b"a", expires_ms=one))
    items.apply_put(rows, stamp(2), put(b"b", expires_ms=other))
    assert the_item(rows).expires_ms == expected


def test_a_version_changes_with_the_value_and_not_with_a_refresh() -> None:
    rows = DictRows()
    items.apply_put(rows, stamp(1), put(b"a", expires_ms=5))
    first = the_item(rows)
    items.apply_refresh(rows, stamp(1, 2), Refresh((Refreshed(("u",), "k", first.seen, 50),)))
    refreshed = the_item(rows)
    items.apply_put(rows, stamp(1, 3), put(b"a", seen=first.seen))
    assert (refreshed.version, refreshed.expires_ms) == (first.version, 50)
    assert the_item(rows).version != first.version


def test_nothing_is_left_of_an_item_that_was_deleted() -> None:
    rows = DictRows()
    items.apply_put(rows, stamp(1), put(b"a", expires_ms=5))
    items.apply_delete(rows, stamp(1, 2), Delete(("u",), "k", the_item(rows).seen))
    assert rows.canonical() == []


def test_items_are_in_the_order_of_namespace_and_key() -> None:
    rows = DictRows()
    paths = [(("a",), "z"), ((), "k"), (("a", "b"), "a"), (("a-b",), "k"), (("a",), "a"), (("é",), "k"), (("aa",), "k")]
    for number, (rest, key) in enumerate(paths, 1):
        items.apply_put(rows, stamp(1, number), Put(rest, key, b"v", (), 1))
    assert [(item.rest, item.key) for _, _, item in items.below(rows, ())] == sorted(paths)
    assert [(item.rest, item.key) for _, _, item in items.below(rows, ("a",))] == [
        (("a",), "a"),
        (("a",), "z"),
        (("a", "b"), "a"),
    ]


def test_a_path_can_be_split_again_whatever_the_key_holds() -> None:
    for rest, key in [((), "k"), (("a", "b"), "a/b.c"), (("é/x",), "ü")]:
        assert items.split_path(items.path_of(rest, key)) == (rest, key)
        assert items.split_address(items.address("m", rest, key)) == (("m", *rest), key)


def test_expired_items_come_the_longest_expired_first_and_no_more_than_asked() -> None:
    rows = DictRows()
    for number, expires_ms in enumerate([30, 10, NEVER, 20, 40], 1):
        items.apply_put(rows, stamp(1, number), Put((), f"k{expires_ms}", b"v", (), 1, expires_ms, expires_ms))
    assert [item.key for item in items.expired(rows, 40, limit=2)] == ["k10", "k20"]
    assert [item.key for item in items.expired(rows, 30, limit=9)] == ["k10", "k20"]
