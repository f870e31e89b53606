"""Compactions: the document stays what its updates make it, whatever of them went, and in whatever order all that came."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from hashlib import sha256
from itertools import count
from typing import Any

import pycrdt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.crdt.dot import NOTHING_SEEN, Dot, Floor, VersionVector
from shoal.crdt.rows import Rows, Stamp
from shoal.errors import NotReady, ShoalError, StoreCorrupt
from shoal.kinds.document.state import compaction, document, genesis
from shoal.kinds.document.state.compaction import Compact, Coverage, Cut, End, coverage_of
from shoal.kinds.document.state.document import Pace, RootKind, Update
from shoal.kinds.document.state.live import EMPTY, Building, LiveDocument
from tests.support import edits
from tests.support.causal import Choose, Decide, Operation, Replica, check_converges, origin
from tests.support.edits import ACTIONS, ROOTS
from tests.support.examples import examples
from tests.support.retired import Past
from tests.support.rows import DictRows
from tests.support.samples import chooser, fails_for_some_seed

Change = tuple[Update, bytes] | tuple[Compact, bytes]
PACE = Pace(2, 64, 64)
CONTENTS = ({"m": {"x": 1}}, {"m": {"y": [2]}, "t": "hé"}, {"a": [1, 2]})


def apply(rows: Rows, stamp: Stamp, change: Change) -> None:
    made, payload = change
    if isinstance(made, Compact):
        compaction.apply(rows, stamp, made, payload)
    else:
        document.apply(rows, stamp, made, payload)


def live(updates: list[bytes], roots: dict[str, RootKind] = ROOTS) -> LiveDocument:
    return LiveDocument(bytes_max=1 << 24, roots_max=8, updates=updates, roots=roots)


def built(rows: Rows) -> LiveDocument:
    return live([*compaction.updates(rows), document.withdrawn(rows)])


def update(payload: bytes) -> Change:
    return Update(sha256(payload).digest(), ROOTS), payload


def beginning(content: Any) -> Change:
    made = genesis.begin(content, 0)
    return Update(sha256(made.update).digest(), made.roots, genesis=made.digest), made.update


def cut(rows: Rows, *, context: VersionVector = NOTHING_SEEN, before_hlc: int = 2**63, updates_max: int = 100) -> Cut:
    steps = compaction.cut(lambda: rows, context, before_hlc=before_hlc, updates_max=updates_max, pace=PACE)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            found: Cut = done.value
            return found


def compacting(rows: Rows, **bounds: Any) -> Change | None:
    cut_here = cut(rows, **bounds)
    if not cut_here.updates:
        return None
    building = Building()
    for some in compaction.content(lambda: rows, cut_here.coverage, pace=PACE):
        building.add(some)
    merged = building.snapshot()
    return Compact(sha256(merged).digest(), cut_here.coverage.pack()), merged


def held_by_all(everyone: list[Replica]) -> int:
    """A time up to which all replicas hold the same operations, and none will issue any more."""
    issued = {operation.stamp.dot: operation.stamp.hlc for replica in everyone for operation in replica.applied}
    lacking = [hlc for dot, hlc in issued.items() if not all(replica.vector.covers(dot) for replica in everyone)]
    reached = [max((each.stamp.hlc for each in replica.applied), default=0) for replica in everyone]
    return min([*reached, *(hlc - 1 for hlc in lacking)])


def deciding(choose: Choose) -> Decide:
    clients = count(10)

    def decide(replica: Replica, everyone: list[Replica]) -> list[Change]:
        rows = replica.rows
        if choose(5) == 0:
            hlc = held_by_all(everyone) if choose(2) else 0
            context = VersionVector().retire((), Past({}, hlc, hlc))
            made = compacting(rows, context=context, before_hlc=(1 + choose(12)) << 16, updates_max=1 + choose(6))
            return [] if made is None else [made]
        if not replica.applied and choose(2):
            return [beginning(CONTENTS[choose(len(CONTENTS))])]
        doc = built(rows).fork(client_id=next(clients))
        before = doc.get_state()
        for _ in range(1 + choose(3)):
            edits._edit(doc, 1 + choose(ACTIONS - 1), choose(24))
        return [update(doc.get_update(before))]

    return decide


def twin(operations: list[Operation]) -> bytes:
    """The document of all its updates, none of them merged."""
    rows = DictRows()
    for operation in operations:
        for at, change in operation.stamped():
            if isinstance(change[0], Update):
                document.apply(rows, at, *change)
    return live([*(payload for _, payload in document.updates(rows)), document.withdrawn(rows)]).canonical()


def compactions(operations: list[Operation]) -> Iterator[tuple[Stamp, Compact]]:
    for operation in operations:
        for at, (made, _) in operation.stamped():
            if isinstance(made, Compact):
                yield at, made


def sweep(rows: Rows, swept: list[tuple[Stamp, Compact]]) -> None:
    """As a node does it, one compaction after the other, once all are stable."""
    waits = {at.pack_position() for at, _ in swept}
    for at, made in swept:
        position = at.pack_position()
        found = compaction.find(rows, position)
        if found is not None:
            for _ in compaction.proved(lambda: rows, found, made.digest, PACE):
                pass
            for page in compaction.swept(lambda: rows, found, PACE):
                for gone, _ in page:
                    rows.delete(document.row_of(gone))
            others = compaction.superseded_by(rows, found)
            if set(compaction.superseding(rows, position, found.coverage)) - waits:
                others.append(position)
            for other in others:
                if other == position or other not in waits:
                    for row in compaction.rows_of(other):
                        rows.delete(row)
        waits.discard(position)


def late(choose: Choose, operations: list[Operation]) -> Replica:
    """A replica that comes when some of what was compacted went: mid-way it is what it should be, or says that it cannot be."""
    made = list(compactions(operations))

    def erased(rows: Rows, stamp: Stamp, change: Change) -> None:
        stands, _ = change
        gone = any(Coverage.unpack(each.coverage).covers(stamp.pack_position()) for _, each in made)
        if isinstance(stands, Update) and not stands.genesis and gone and choose(2):
            compaction.apply_erased(rows, stamp, stands)
        else:
            apply(rows, stamp, change)

    replica = Replica(origin(9), erased)
    waiting = list(operations)
    while waiting:
        replica.receive([waiting.pop(choose(len(waiting)))])
        if not compaction.has_gap(replica.rows):
            assert built(replica.rows).canonical() == twin(replica.applied)
    assert not compaction.has_gap(replica.rows)
    return replica


def check(choose: Choose) -> None:
    replicas = check_converges(choose, apply, deciding(choose), deliveries=1)
    operations = list(replicas[0].applied)
    whole = twin(operations)
    assert built(replicas[0].rows).canonical() == whole
    replicas.append(late(choose, operations))
    swept = []
    for replica in replicas:
        order = list(compactions(operations))
        sweep(replica.rows, [order.pop(choose(len(order))) for _ in range(len(order))])
        assert built(replica.rows).canonical() == whole
        swept.append(replica.rows.canonical())
    assert all(rows == swept[0] for rows in swept)


@pytest.mark.answers("applying-commutes")
@examples(100)
@given(st.data())
def test_a_document_is_what_its_updates_make_it_whatever_of_them_went(data: st.DataObject) -> None:
    check(chooser(data))


def one_too_far(*args: Any, **bounds: Any) -> Generator[None, None, Cut]:
    found = yield from _cut(*args, **bounds)
    ends = {origin: End(end.sequence + 1, end.hlc) for origin, end in found.coverage.ends.items()}
    return found._replace(coverage=found.coverage._replace(ends=ends))


def above_what_all_hold(coverage: Coverage, context: VersionVector, below: int) -> Coverage:
    hlc = max((end.hlc for end in coverage.ends.values()), default=0)
    return _raised(coverage, context.retire((), Past({}, hlc, hlc)), below)


def without_the_first(rows: Callable[[], Rows], coverage: Coverage, *, pace: Pace) -> Iterator[list[bytes]]:
    updates = [update for some in _content(rows, coverage, pace=pace) for update in some]
    return iter([[update] for update in updates[1:]])


def anything_goes(rows: Callable[[], Rows], found: compaction.CurrentCompaction, digest: bytes, pace: Pace) -> Iterator[None]:
    return iter(())


def whatever_else_is_there(rows: Rows, found: compaction.CurrentCompaction) -> list[bytes]:
    return [position for position, _ in compaction._coverages(rows) if position != found.position]


_cut, _content, _raised = compaction.cut, compaction.content, Coverage.raised


@pytest.mark.answers("data-type-whose-result-depends-on-the-order")
@pytest.mark.parametrize(
    "bugs",
    [
        {"cut": one_too_far},
        {"content": without_the_first, "proved": anything_goes},
        {"superseded_by": whatever_else_is_there},
        {"raised": above_what_all_hold},
    ],
    ids=lambda bugs: next(iter(bugs)),
)
def test_the_check_finds_a_planted_bug(monkeypatch: pytest.MonkeyPatch, bugs: dict[str, Any]) -> None:
    def failing(choose: Choose) -> None:
        try:
            check(choose)
        except ShoalError as error:
            raise AssertionError(error) from error

    for name, bug in bugs.items():
        monkeypatch.setattr(Coverage if name == "raised" else compaction, name, bug)
    assert fails_for_some_seed(failing)


# ── what one covers ───────────────────────────────────────────────────────────


def typed(replica: Replica, *texts: str) -> pycrdt.Doc[Any]:
    doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=7)
    text = doc.get("t", type=pycrdt.Text)
    for number, each in enumerate(texts, 1):
        before = doc.get_state()
        text += each
        replica.issue([update(doc.get_update(before))], wall_ms=number)
    return doc


def compacted(replica: Replica, **bounds: int) -> tuple[Stamp, Compact]:
    made = compacting(replica.rows, **bounds)
    assert made is not None
    operation = replica.issue([made], wall_ms=99)
    assert isinstance(made[0], Compact)
    return operation.stamp, made[0]


def test_the_oldest_are_covered_and_the_next_takes_up_where_it_ended() -> None:
    replica = Replica(origin(1), apply)
    typed(replica, *"abcde")
    first = cut(replica.rows, before_hlc=4 << 16, updates_max=2)
    assert (first.updates, first.more) == (2, True)
    compacted(replica, before_hlc=4 << 16, updates_max=2)
    following = cut(replica.rows, before_hlc=4 << 16, updates_max=2)
    assert (following.updates, following.more) == (1, False)
    assert following.coverage.vector == VersionVector({origin(1): 3})


def test_deleted_content_is_not_in_it() -> None:
    replica = Replica(origin(1), apply)
    doc = typed(replica, "x" * 5000)
    before = doc.get_state()
    doc.get("t", type=pycrdt.Text).clear()
    replica.issue([update(doc.get_update(before))], wall_ms=9)
    compacted(replica)
    assert len(compaction.standing(replica.rows)[0].merged) < 50


def whole(replica: Replica) -> Coverage:
    return coverage_of(position for position, _ in document.updates(replica.rows))


@pytest.mark.answers("snapshot-drops-updates-that-wait")
def test_one_that_lacks_what_it_covers_erases_nothing() -> None:
    replica = Replica(origin(1), apply)
    typed(replica, "a", "b", "c")
    updates = [payload for _, payload in document.updates(replica.rows)]
    merged = live(updates[:2]).snapshot()
    made = Compact(sha256(merged).digest(), whole(replica).pack())
    at = replica.issue([(made, merged)], wall_ms=99).stamp
    with pytest.raises(StoreCorrupt, match="lacks some"):
        sweep(replica.rows, [(at, made)])
    assert [payload for _, payload in document.updates(replica.rows)] == updates


def test_one_that_lacks_a_deletion_erases_nothing() -> None:
    replica = Replica(origin(1), apply)
    doc = typed(replica, "abc")
    before = doc.get_state()
    doc.get("t", type=pycrdt.Text).clear()
    replica.issue([update(doc.get_update(before))], wall_ms=9)
    merged = next(document.updates(replica.rows))[1]
    made = Compact(sha256(merged).digest(), whole(replica).pack())
    at = replica.issue([(made, merged)], wall_ms=99).stamp
    with pytest.raises(StoreCorrupt, match="lacks some"):
        sweep(replica.rows, [(at, made)])


def test_one_that_was_damaged_erases_nothing() -> None:
    replica = Replica(origin(1), apply)
    typed(replica, "a", "b")
    at, made = compacted(replica)
    replica.rows.put(compaction.rows_of(at.pack_position())[1], EMPTY)
    with pytest.raises(StoreCorrupt, match="damaged"):
        sweep(replica.rows, [(at, made)])


def test_the_later_one_takes_the_place_of_the_earlier() -> None:
    replica = Replica(origin(1), apply)
    doc = typed(replica, "a")
    first = compacted(replica)
    before = doc.get_state()
    doc.get("t", type=pycrdt.Text).insert(1, "b")
    replica.issue([update(doc.get_update(before))], wall_ms=100)
    second = compacted(replica)
    sweep(replica.rows, [first, second])
    assert [each.position for each in compaction.standing(replica.rows)] == [second[0].pack_position()]
    assert compaction.find(replica.rows, first[0].pack_position()) is None
    assert compaction.content_of(replica.rows, *first) is None
    assert built(replica.rows).to_py()["t"] == "ab"


def test_of_equal_ones_the_later_stays_in_whatever_order_they_are_swept() -> None:
    for turned in (False, True):
        one, other = Replica(origin(1), apply), Replica(origin(2), apply)
        typed(one, "a")
        other.receive(one.applied)
        made = [compacted(one), compacted(other)]
        one.receive(other.applied)
        sweep(one.rows, made[::-1] if turned else made)
        last = max(at.pack_position() for at, _ in made)
        assert [position for position, _ in compaction._coverages(one.rows)] == [last]


def test_an_operation_covered_by_one_of_several_is_covered() -> None:
    rows = DictRows()
    for number in (1, 2):
        covers = Coverage(ends={origin(number): End(1, number << 16)})
        stamp = Stamp(Dot(origin(3), number), number << 17, number, VersionVector())
        compaction.apply(rows, stamp, Compact(b"", covers.pack()), b"")
    assert compaction.covered(rows).ends.keys() == {origin(1), origin(2)}


def test_a_merged_update_that_is_missing_is_corruption() -> None:
    replica = Replica(origin(1), apply)
    typed(replica, "a")
    at, made = compacted(replica)
    replica.rows.delete(compaction.rows_of(at.pack_position())[1])
    with pytest.raises(StoreCorrupt, match="missing"):
        list(compaction.updates(replica.rows))
    with pytest.raises(StoreCorrupt, match="missing"):
        compaction.content_of(replica.rows, at, made)


def test_a_gap_is_there_until_all_that_was_erased_is_covered() -> None:
    one, other = Replica(origin(1), apply), DictRows()
    typed(one, "a", "b")
    at, made = compacted(one, before_hlc=2 << 16)
    for operation in one.applied[:2]:
        [(stamp, (stands, _))] = operation.stamped()
        compaction.apply_erased(other, stamp, stands)
    assert not compaction.apply(other, at, made, compaction.standing(one.rows)[0].merged)
    assert compaction.has_gap(other)
    later, all_of_it = compacted(one)
    assert compaction.apply(other, later, all_of_it, compaction.standing(one.rows)[0].merged)
    assert built(other).to_py()["t"] == "ab"


@pytest.mark.parametrize(
    ("coverage", "updates", "refusal"),
    [
        (Coverage(ends={origin(1): End(3, 2 << 16)}), 2, ValueError),
        (Coverage(ends={origin(2): End(1, 2 << 16)}), 2, ValueError),
        (Coverage(ends={origin(1): End(2, 2 << 16)}), slice(1, 2), NotReady),
        (Coverage(), 2, ValueError),
        (Coverage(ends={origin(1): End(2, (3 << 16) + 1)}), 2, ValueError),
        (Coverage(Floor(3, 3 << 16)), 2, ValueError),
        (Coverage(Floor(3, 2)), 2, ValueError),
        (Coverage(settled=1), 2, ValueError),
        (Coverage(ends={origin(1): End(2, 2 << 16)}, settled=3 << 16), 2, ValueError),
    ],
)
def test_impossible_compactions_are_refused(coverage: Coverage, updates: Any, refusal: type[Exception]) -> None:
    replica = Replica(origin(1), apply)
    typed(replica, "a", "b")
    payloads = [payload for _, payload in document.updates(replica.rows)]
    merged = payloads[1] if isinstance(updates, slice) else live(payloads).snapshot()
    stamp = Stamp(Dot(origin(1), 3), 3 << 16, 3, replica.vector)
    with pytest.raises(refusal):
        compaction.check(Compact(b"", coverage.pack()), stamp)
        for _ in compaction.vet(merged, structs_max=2):
            pass


def test_a_beginning_stays_to_be_shown_where_another_counts() -> None:
    replica = Replica(origin(1), apply)
    replica.issue([beginning(CONTENTS[0])], wall_ms=1)
    sweep(replica.rows, [compacted(replica)])
    assert len(list(document.updates(replica.rows))) == 1
    assert not compaction.is_erased(
        replica.rows,
        Stamp(Dot(origin(1), 1), 1 << 16, 1, VersionVector()),
        beginning(CONTENTS[0])[0],  # type: ignore[arg-type]
    )
