"""Queues: replicas agree on what is pending and who finished what, and nothing comes back."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.crdt.dot import Dot, VersionVector
from shoal.crdt.rows import Rows, Stamp
from shoal.kinds.worklist import state as queue
from shoal.kinds.worklist.state import INBOX, Attempt, Counts, Dequeue, Enqueue, Item, Plan, Purge, RankedEntry
from tests.support.causal import Choose, Decide, Operation, Replica, check_converges, origin
from tests.support.examples import examples
from tests.support.rows import DictRows
from tests.support.samples import chooser, fails_for_some_seed

Change = Enqueue | Dequeue | Attempt | Purge
PLANS = (None, None, Plan(priority=3), Plan(not_before_ms=5))
QUEUES = (INBOX, "w", "wo")
KEYS = (None, "a", "b")


def apply(rows: Rows, stamp: Stamp, change: Change) -> None:
    match change:
        case Enqueue():
            queue.apply_enqueue(rows, stamp, change)
        case Dequeue():
            queue.apply_dequeue(rows, stamp, change)
        case Attempt():
            queue.apply_attempt(rows, stamp, change)
        case Purge():
            queue.apply_purge(rows, stamp, change)


def deciding(choose: Choose) -> Decide:
    def decide(replica: Replica, _all: list[Replica]) -> list[Change]:
        name = QUEUES[choose(len(QUEUES))]
        ids = [id for _, id in queue.pending(replica.rows, name)]
        what = choose(9)
        known = [*ids, *(id for _, id in queue.dead(replica.rows, name))]
        if what > 5 and known:
            id = known[choose(len(known))]
            entry = queue.entry(replica.rows, name, id)
            assert entry is not None
            nth = 1 if entry.last is None else entry.last.nth + 1
            replaced = tuple((tried.position[8:24], int.from_bytes(tried.position[24:32], "big")) for tried in entry.tries)
            covered = tuple(VersionVector(sorted(map(Dot._make, replaced))).entries())
            return [Attempt(name, id, nth, choose(3), nth, choose(3), "by", choose(2), "", covered)]
        if what == 0 and (done := [id for _, id in queue.finished(replica.rows, name)]):
            return [Purge(name, done[: 1 + choose(2)], tuple(replica.vector.entries()))]
        if what > 3 and ids:
            return [Dequeue(name, ids[choose(len(ids))], f"by {choose(3)}", None, bytes([choose(3)]), choose(2))]
        items = [Item(KEYS[choose(3)], bytes([choose(2)])) for _ in range(1 + choose(2))]
        return [Enqueue(name, "", items, PLANS[choose(len(PLANS))])]

    return decide


def twin(operations: list[Operation]) -> dict[tuple[str, bytes], RankedEntry]:
    """The entries that all operations make at once: a purge takes away what it covers, whenever it comes."""
    made = [(stamp, change) for operation in operations for stamp, change in operation.stamped()]
    purges = [change for _, change in made if isinstance(change, Purge)]
    attempts = [change for _, change in made if isinstance(change, Attempt)]

    def purged(name: str, id: bytes, dot: Dot) -> bool:
        return any(p.queue == name and id in p.ids and VersionVector(p.context).covers(dot) for p in purges)

    def replaced(name: str, id: bytes, dot: Dot) -> bool:
        return any(a.queue == name and a.id == id and VersionVector(a.replaces).covers(dot) for a in attempts)

    entries: dict[tuple[str, bytes], RankedEntry] = {}
    for stamp, change in sorted(made, key=lambda one: (one[0].dot, one[0].nth)):
        if isinstance(change, Enqueue):
            for index, item in enumerate(change.items):
                position = stamp.pack_position() + index.to_bytes(4, "big")
                id = queue.identify(item.key) if item.key is not None else sha256(b"\x00" + position).digest()
                if not purged(change.queue, id, stamp.dot):
                    found = entries.setdefault((change.queue, id), RankedEntry(item.key, [], []))._replace(key=item.key)
                    entries[change.queue, id] = found
                    found.puts.append(queue.Put(position, stamp.wall_ms, change.by, item.value, change.plan))
        elif isinstance(change, Dequeue) and not purged(change.queue, change.id, stamp.dot):
            found = entries.setdefault((change.queue, change.id), RankedEntry(None, [], []))
            at = stamp.pack_position()
            finish = queue.Finish(at, stamp.wall_ms, change.by, change.key, change.result, change.fence)
            found.finishes.append(finish)
            found.finishes.sort(key=lambda finish: (-finish.fence, finish.position[8:]))
        elif isinstance(change, Attempt) and not (
            purged(change.queue, change.id, stamp.dot) or replaced(change.queue, change.id, stamp.dot)
        ):
            found = entries.setdefault((change.queue, change.id), RankedEntry(None, [], []))
            tried = queue.Try(
                *(change.nth, change.fence, stamp.pack_position(), stamp.wall_ms, change.attempt, change.state),
                *(change.by, change.not_before_ms, change.reason),
            )
            tries = tuple(sorted((*found.tries, tried), key=lambda tried: tried.rank))
            entries[change.queue, change.id] = found._replace(tries=tries)
    return entries


def check(choose: Choose) -> None:
    replica = check_converges(choose, apply, deciding(choose))[0]
    expected = twin(replica.applied)
    for name in QUEUES:
        mine = {id: entry for (where, id), entry in expected.items() if where == name}
        is_open = {id: entry for id, entry in mine.items() if entry.puts and not entry.finishes}
        is_dead = {id for id, entry in is_open.items() if entry.last is not None and entry.last.state == queue.DEAD}
        pending = sorted((entry.puts[0].position, id) for id, entry in is_open.items() if id not in is_dead)
        turns = {id: (-is_open[id].plan.priority, is_open[id].not_before_ms) for _, id in pending}
        plain = [id for _, id in pending if turns[id] == (0, 0)]
        special = sorted((turns[id], position, id) for position, id in pending if turns[id] != (0, 0))
        assert [id for _, id in queue.dead(replica.rows, name)] == sorted(is_dead, key=lambda id: _last(is_open[id]))
        assert list(queue.ready(replica.rows, name, 9)) == [*(id for _, _, id in special), *plain]
        assert list(queue.ready(replica.rows, name, 0)) == [*(id for turn, _, id in special if not turn[1]), *plain]
        finished = sorted((entry.finishes[0].position, id) for id, entry in mine.items() if entry.finishes)
        assert list(queue.pending(replica.rows, name)) == pending
        assert list(queue.finished(replica.rows, name)) == finished
        assert queue.counts(replica.rows, name) == Counts(len(pending), len(finished), len(is_dead))
        for id, entry in mine.items():
            stored = queue.entry(replica.rows, name, id)
            assert stored is not None
            assert stored == entry
    counted = {name for (name, _), entry in expected.items() if entry.puts or entry.finishes}
    assert [name for name, _ in queue.worklists(replica.rows)] == sorted(counted - {INBOX})


def _last(entry: RankedEntry) -> bytes:
    assert entry.last is not None
    return entry.last.position


@examples(100)
@given(st.data())
def test_replicas_agree_in_any_order_packet_and_repetition(data: st.DataObject) -> None:
    check(chooser(data))


def a_put_revives(entry: RankedEntry) -> bool:
    return bool(entry.puts) and (not entry.finishes or entry.puts[-1].position > entry.finishes[-1].position)


def everything_is_purged(_position: bytes) -> Dot:
    return Dot(origin(1), 0)


def the_first_to_arrive_counts(rows: Rows, stamp: Stamp, change: Enqueue) -> None:
    fresh = [item for item in change.items if item.key is None or not known(rows, change.queue, item.key)]
    original_enqueue(rows, stamp, Enqueue(change.queue, change.by, fresh))


def known(rows: Rows, name: str, key: str) -> bool:
    return queue.entry(rows, name, queue.identify(key)) is not None


original_enqueue = queue.apply_enqueue


@pytest.mark.parametrize(
    ("owner", "name", "bug"),
    [
        (RankedEntry, "is_pending", property(a_put_revives)),
        (queue, "_dot", everything_is_purged),
        (queue, "_HLC_BYTES", 0),
        (queue, "apply_enqueue", the_first_to_arrive_counts),
    ],
)
def test_the_check_finds_a_planted_bug(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, bug: Callable[..., Any]) -> None:
    monkeypatch.setattr(owner, name, bug)
    assert fails_for_some_seed(check)


def stamp(number: int, *, sequence: int = 1, hlc: int = 1) -> Stamp:
    return Stamp(Dot(origin(number), sequence), hlc, 1, VersionVector())


def test_two_that_take_one_at_the_same_time_both_stay_visible() -> None:
    rows = DictRows()
    apply(rows, stamp(1), Enqueue(INBOX, "boss", [Item("k", b"do")]))
    for number, by in ((3, "late"), (2, "least")):
        apply(rows, stamp(number), Dequeue(INBOX, queue.identify("k"), by, None, b""))
    found = queue.entry(rows, INBOX, queue.identify("k"))
    assert found is not None
    assert [finish.by for finish in found.takers()] == ["least", "late"]
    assert queue.counts(rows, INBOX) == Counts(0, 1)


def test_one_request_that_took_it_on_two_nodes_is_one_taker() -> None:
    rows = DictRows()
    apply(rows, stamp(1), Enqueue(INBOX, "", [Item("k", b"do")]))
    for number in (3, 2):
        apply(rows, stamp(number), Dequeue(INBOX, queue.identify("k"), f"by {number}", "request", b""))
    found = queue.entry(rows, INBOX, queue.identify("k"))
    assert found is not None
    assert [finish.by for finish in found.takers()] == ["by 2"]


@pytest.mark.parametrize("order", [1, -1])
def test_the_result_of_the_greatest_fence_counts(order: int) -> None:
    rows, id = DictRows(), queue.identify("k")
    for number in (1, 2)[::order]:
        queue.apply_dequeue(rows, stamp(number), Dequeue("w", id, "worker", None, bytes([number]), fence=number))
    entry = queue.entry(rows, "w", id)
    assert entry is not None
    assert [finish.fence for finish in entry.finishes] == [2, 1]


@pytest.mark.parametrize("order", [1, -1])
def test_the_last_try_alone_says_what_is_dead(order: int) -> None:
    rows, id = DictRows(), queue.identify("k")
    queue.apply_enqueue(rows, stamp(9), Enqueue("w", "maker", [Item("k", b"v")]))
    tries = [(1, 1, queue.DEAD, 3), (2, 1, queue.DEAD, 2), (2, 2, queue.WAITING, 1)]  # Nth, fence, state, origin.
    for nth, fence, state, number in tries[::order]:
        queue.apply_attempt(rows, stamp(number), Attempt("w", id, nth, fence, nth, state, "worker", 0, ""))
    entry = queue.entry(rows, "w", id)
    assert entry is not None
    assert entry.last is not None
    assert (entry.last.nth, entry.last.fence) == (2, 2)
    assert not entry.is_dead


def test_purged_entries_leave_no_row() -> None:
    rows = DictRows()
    apply(rows, stamp(1), Enqueue("w", "", [Item("k", b"1"), Item(None, b"2")]))
    for number, (_, id) in enumerate(list(queue.pending(rows, "w")), 2):
        apply(rows, stamp(1, sequence=number), Dequeue("w", id, "", None, b""))
    ids = [id for _, id in queue.finished(rows, "w")]
    apply(rows, stamp(1, sequence=4), Purge("w", ids, ((origin(1), 3),)))
    assert rows.rows == {}


@pytest.mark.answers("rows-of-a-queue-depend-on-the-order")
def test_a_put_after_a_finish_that_outlived_a_purge_has_its_key_in_any_order() -> None:
    """Found by two nodes that finished at once, a purge, and a third node's put of the same key."""
    id = queue.identify("k")
    first: tuple[Stamp, Change] = (stamp(1), Enqueue("w", "", [Item("k", b"1")]))
    outlives: tuple[Stamp, Change] = (stamp(2), Dequeue("w", id, "b", None, b""))
    purge: tuple[Stamp, Change] = (stamp(1, sequence=3), Purge("w", [id], ((origin(1), 2),)))
    concurrent: tuple[Stamp, Change] = (stamp(3), Enqueue("w", "", [Item("k", b"1")]))
    left = []
    for order in (
        [first, outlives, purge, concurrent],
        [first, concurrent, outlives, purge],
        [concurrent, first, purge, outlives],
    ):
        rows = DictRows()
        for made, change in order:
            apply(rows, made, change)
        left.append(rows.rows)
    assert left[0] == left[1] == left[2]


def test_a_put_that_the_purge_had_not_seen_is_a_new_entry() -> None:
    rows = DictRows()
    id = queue.identify("k")
    apply(rows, stamp(1), Enqueue("w", "", [Item("k", b"1")]))
    apply(rows, stamp(1, sequence=2), Dequeue("w", id, "", None, b""))
    apply(rows, stamp(2), Enqueue("w", "", [Item("k", b"2")]))
    assert list(queue.pending(rows, "w")) == []
    apply(rows, stamp(1, sequence=3), Purge("w", [id], ((origin(1), 2),)))
    assert [found for _, found in queue.pending(rows, "w")] == [id]
