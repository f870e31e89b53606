"""Lists: the same order everywhere, elements that are moved once, and runs that stand together."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from shoal.crdt.dot import Dot, Origin, VersionVector
from shoal.crdt.rows import Rows, Stamp
from shoal.kinds.list import state as lists
from shoal.kinds.list.state import Change, Insert, Move, Named, Place, Remove
from tests.support.causal import Apply, Choose, Decide, Operation, Replica, check_converges, deliver, origin
from tests.support.examples import examples
from tests.support.rows import DictRows
from tests.support.samples import chooser, fails_for_some_seed

A, B, C = origin(1), origin(2), origin(3)


def apply(rows: Rows, stamp: Stamp, change: Change) -> None:
    """Without a context: a node applies a peer's operations under its own vector."""
    lists.apply(rows, replace(stamp, context=VersionVector()), change)


def gap(rows: Rows, index: int) -> tuple[bytes | None, bytes | None]:
    """The neighbours of what is put at an index."""
    paths = [element.path for element in lists.elements(rows)]
    return ([None, *paths][index], [*paths, None][index])


class Issuer:
    """Decides changes of a replica as a node does: by its own rows, under the stamp of the operation."""

    def __init__(self, replica: Replica) -> None:
        self.rows = replica.rows
        self.stamp = Stamp(Dot(replica.origin, replica.vector[replica.origin] + 1), 0, 0, VersionVector())

    def insert(self, index: int, count: int, request: str | None = None) -> Insert:
        at = lists.between(*gap(self.rows, index), self.stamp, count)
        return Insert(at, tuple(b"%d" % nth for nth in range(count)), request)

    def move(self, id: bytes, index: int) -> Move:
        return Move(lists.named(self.rows, id), lists.between(*gap(self.rows, index), self.stamp))


def deciding(choose: Choose) -> Decide:
    def decide(replica: Replica, _everyone: list[Replica]) -> list[Change]:
        issuer, shown = Issuer(replica), list(lists.elements(replica.rows))
        what = choose(5)
        if not shown or what < 3:
            request = f"request-{choose(3)}" if choose(3) == 0 else None
            return [issuer.insert(choose(len(shown) + 1), 2 if request else 1 + choose(3), request)]
        chosen = shown[choose(len(shown))].id
        if what == 3:
            return [issuer.move(chosen, choose(len(shown) + 1))]
        return [Remove((lists.named(replica.rows, chosen),))]

    return decide


class Twin:
    """What is live, from all changes at once: the adds that no removal has seen, each where its last move put it."""

    def __init__(self, operations: list[Operation]) -> None:
        stamped = [(at, change) for operation in operations for at, change in operation.stamped()]
        places: dict[tuple[bytes, bytes], tuple[bytes, bytes, bytes]] = {}  # Id and dot → when, where, and the value.
        for at, change in sorted(stamped, key=lambda each: each[0].pack_position()):
            if isinstance(change, Insert):
                for nth, value in enumerate(change.values):
                    id = lists.id_of(at, change.request, nth)
                    places[id, at.dot.pack()] = (b"", change.at.path(at, nth), value)
            elif isinstance(change, Move):
                for seen in change.element.seen:
                    key = change.element.id, Dot(Origin(seen[0]), seen[1]).pack()
                    if key in places:
                        places[key] = (at.pack_position(), change.at.path(at), places[key][2])
            else:
                for element in change.elements:
                    for seen in element.seen:
                        places.pop((element.id, Dot(Origin(seen[0]), seen[1]).pack()), None)
        least: dict[bytes, bytes] = {}
        for id, dot in sorted(sorted(places), key=lambda each: places[each][0], reverse=True):
            least.setdefault(id, dot)  # The add that was moved last, or else the one with the least dot.
        self.shown = sorted((places[id, dot][1] + lists.HERE, id, places[id, dot][2]) for id, dot in least.items())


def check(choose: Choose, apply: Apply = apply) -> None:
    replica = check_converges(choose, apply, deciding(choose))[0]
    rows = replica.rows
    found = list(lists.elements(rows))
    assert [(path + lists.HERE, id, value) for path, id, value in found] == Twin(replica.applied).shown
    assert lists.size(rows) == len(found)
    for index, element in enumerate(found):
        assert lists.element_at(rows, index) == element
        assert lists.index_of(rows, element.path) == index
    assert lists.element_at(rows, len(found)) is None
    counted = [row for row in rows.rows if row[:1] == lists.BUCKET]
    assert len(rows.rows) == 2 * len(found) + len(counted) + bool(found)


@pytest.fixture
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists, "_BUCKET", 3)


@pytest.mark.answers("applying-commutes")
@pytest.mark.usefixtures("small_buckets")
@pytest.mark.parametrize("long", [1, lists.PATH_LONG])
def test_replicas_show_the_order_of_a_twin(long: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists, "PATH_LONG", long)

    @examples(100)
    @given(st.data())
    def converges(data: st.DataObject) -> None:
        check(chooser(data))

    converges()


@pytest.mark.usefixtures("small_buckets")
@pytest.mark.parametrize("seed", [44, 100, 336, 378])
def test_of_two_moves_the_later_counts_in_whatever_order_they_come(seed: int) -> None:
    """Runs in which two replicas move one element: the drawn ones above hardly ever do."""
    check(random.Random(seed).randrange)


def a_move_takes_what_it_has_not_seen(rows: Rows, stamp: Stamp, change: Change) -> None:
    if isinstance(change, Move):
        change = Move(lists.named(rows, change.element.id), change.at)
    apply(rows, stamp, change)


def the_move_that_comes_last_counts(rows: Rows, stamp: Stamp, change: Change) -> None:
    if isinstance(change, Move):
        before = lists._adds(rows, change.element.id)
        seen = {Dot(Origin(origin), sequence).pack() for origin, sequence in change.element.seen}
        after = [add._replace(path=change.at.path(stamp)) if add.dot in seen else add for add in before]
        lists._store(rows, change.element.id, before, after)
    else:
        apply(rows, stamp, change)


def a_removal_takes_what_it_has_not_seen(rows: Rows, stamp: Stamp, change: Change) -> None:
    if isinstance(change, Remove):
        change = Remove(tuple(lists.named(rows, element.id) for element in change.elements))
    apply(rows, stamp, change)


def a_repeated_request_adds_twice(rows: Rows, stamp: Stamp, change: Change) -> None:
    apply(rows, stamp, replace(change, request=None) if isinstance(change, Insert) else change)


def a_moved_element_is_counted_twice(rows: Rows, stamp: Stamp, change: Change) -> None:
    apply(rows, stamp, change)
    if isinstance(change, Move) and lists.find(rows, change.element.id):
        lists._put_number(rows, lists.COUNT, lists.size(rows) + 1, 8)


BUGS = [
    a_move_takes_what_it_has_not_seen,
    the_move_that_comes_last_counts,
    a_removal_takes_what_it_has_not_seen,
    a_repeated_request_adds_twice,
    a_moved_element_is_counted_twice,
]


@pytest.mark.parametrize("bug", BUGS)
def test_the_check_finds_a_planted_bug(bug: Apply) -> None:
    assert fails_for_some_seed(lambda choose: check(choose, bug))


def runs(choose: Choose) -> None:
    """Three replicas write runs at one place, each without having seen those of the others; then all meet."""
    shared = Replica(origin(9), apply)
    shared.issue([Issuer(shared).insert(0, 2)], wall_ms=1)
    begun = list(shared.applied)
    written: list[tuple[list[bytes], list[Operation]]] = []
    for number in (1, 2, 3):
        replica = Replica(origin(number), apply)
        replica.receive(begun)
        back, run, place = choose(2), list[bytes](), 1
        for _ in range(1 + choose(4)):
            count = 1 + choose(3)
            operation = replica.issue([Issuer(replica).insert(place, count)], wall_ms=1 + choose(8))
            new = [lists.id_of(operation.stamp, None, nth) for nth in range(count)]
            run = [*new, *run] if back else [*run, *new]
            place += 0 if back else count
        written.append((run, replica.applied[len(begun) :]))
    everything = [*begun, *(operation for _, operations in written for operation in operations)]
    met = deliver(choose, apply, everything)
    order = [element.id for element in lists.elements(met.rows)]
    for run, _ in written:
        first = order.index(run[0])
        assert order[first : first + len(run)] == run, "a run is torn"


@examples(100)
@given(st.data())
def test_runs_written_apart_stand_together(data: st.DataObject) -> None:
    runs(chooser(data))


def test_runs_of_nodes_that_take_turns_stand_together() -> None:
    sides = []
    for first, second in ((A, B), (C, origin(4))):
        one, other = Replica(first, apply), Replica(second, apply)
        for turn in range(6):
            writer, reader = (one, other) if turn % 2 == 0 else (other, one)
            size = lists.size(writer.rows)
            reader.receive([writer.issue([Issuer(writer).insert(size, 1)], wall_ms=1)])
        sides.append(one.applied)
    met = deliver(random.Random(1).randrange, apply, [*sides[0], *sides[1]])
    origins = [element.path[-26:-10] in (A, B) for element in lists.elements(met.rows)]
    assert sum(a != b for a, b in pairwise(origins)) == 1


def test_paths_stay_short_while_nodes_take_turns() -> None:
    replicas = [Replica(each, apply) for each in (A, B)]
    for turn in range(200):
        writer, reader = replicas[turn % 2], replicas[1 - turn % 2]
        reader.receive([writer.issue([Issuer(writer).insert(lists.size(writer.rows), 1)], wall_ms=1)])
    found = list(lists.elements(replicas[0].rows))
    assert len(found) == 200
    assert max(len(element.path) for element in found) < lists.PATH_LONG + 64


@pytest.mark.parametrize("back", [False, True])
def test_one_origin_goes_on_in_one_step(back: bool) -> None:
    replica = Replica(A, apply)
    for nth in range(50):
        replica.issue([Issuer(replica).insert(0 if back else nth, 1)], wall_ms=1)
    found = list(lists.elements(replica.rows))
    assert {len(element.path) for element in found} == {len(found[0].path)}


@pytest.mark.usefixtures("small_buckets")
def test_removing_everything_leaves_nothing() -> None:
    replica = Replica(A, apply)
    chosen = random.Random(2)
    for _ in range(40):
        replica.issue([Issuer(replica).insert(chosen.randrange(lists.size(replica.rows) + 1), 2)], wall_ms=1)
    named = [lists.named(replica.rows, element.id) for element in lists.elements(replica.rows)]
    replica.issue([Remove(tuple(named))], wall_ms=1)
    assert replica.rows.rows == {}


def test_elements_go_on_after_any_of_them() -> None:
    rows = DictRows()
    apply(rows, Stamp(Dot(A, 1), 1, 1, VersionVector()), Insert(Place(), (b"a", b"b", b"c")))
    found = list(lists.elements(rows))
    for nth, element in enumerate(found):
        assert list(lists.elements(rows, after=element.path)) == found[nth + 1 :]
    assert [lists.neighbour(rows, found[1].path, before=before) for before in (True, False)] == [found[0].path, found[2].path]
    assert lists.end(rows) == found[2].path


def numbered(chosen: random.Random, monkeypatch: pytest.MonkeyPatch, *, one_by_one: bool) -> Replica:
    replica = Replica(A, apply)
    with monkeypatch.context() as patch:
        if one_by_one:
            patch.setattr(lists, "_is_gap", lambda *_: False)
        for _ in range(40):
            request = f"request-{chosen.randrange(9)}" if chosen.random() < 0.3 else None
            index = chosen.randrange(lists.size(replica.rows) + 1)
            replica.issue([Issuer(replica).insert(index, 1 + chosen.randrange(200), request)], wall_ms=1)
    return replica


@pytest.mark.parametrize("seed", range(5))
def test_a_run_is_put_as_its_values_are_one_by_one(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    run, single = (numbered(random.Random(seed), monkeypatch, one_by_one=each) for each in (False, True))
    assert lists.size(run.rows) > 1000
    assert run.rows.rows == single.rows.rows


def test_a_run_among_what_stands_in_its_place_is_counted() -> None:
    """As a peer may send it: an element that hangs on another one, which comes later."""
    stamp, other = (Stamp(Dot(each, 1), 1, 1, VersionVector()) for each in (A, B))
    insert = Insert(Place(), tuple(b"%d" % nth for nth in range(500)))
    child = Insert(Place(Place().path(stamp, 250) + lists.RIGHT), tuple(b"c%d" % nth for nth in range(300)))
    orders: list[dict[bytes, bytes]] = []
    for order in (((stamp, insert), (other, child)), ((other, child), (stamp, insert))):
        rows = DictRows()
        for each in order:
            apply(rows, *each)
        orders.append(rows.rows)
    assert orders[0] == orders[1]


def test_only_places_are_accepted() -> None:
    step = Place().path(Stamp(Dot(A, 1), 1, 1, VersionVector()))
    assert lists.is_place(Place())
    assert lists.is_place(Place(step + lists.RIGHT, 3))
    for wrong in (Place(step), Place(step + lists.HERE), Place(b"x"), Place(start=-1), Place(start=1 << 32)):
        assert not lists.is_place(wrong)
    assert not lists.is_place(Place((step + lists.LEFT) * 200))


def test_an_unknown_element_has_no_place() -> None:
    rows = DictRows()
    assert lists.named(rows, b"x") == Named(b"x")
    assert lists.find(rows, b"x") is None
    assert lists.end(rows) is None
    apply(rows, Stamp(Dot(A, 1), 1, 1, VersionVector()), Move(Named(b"x", ((B, 1),)), Place()))
    assert rows.rows == {}


def test_a_move_stays_when_the_request_arrives_from_another_node() -> None:
    late, here = Replica(A, apply), Replica(B, apply)
    again = late.issue([Issuer(late).insert(0, 1, "request")], wall_ms=1)
    here.issue([Issuer(here).insert(0, 1, "request")], wall_ms=2)
    here.issue([Issuer(here).insert(1, 1)], wall_ms=3)
    moved, other = lists.elements(here.rows)
    here.issue([Issuer(here).move(moved.id, 2)], wall_ms=4)
    here.receive([again])
    assert [element.id for element in lists.elements(here.rows)] == [other.id, moved.id]


@pytest.mark.parametrize("seen", [(b"", -1), (b"x" * 40, 1 << 63)])
def test_dots_that_nobody_issued_name_nothing(seen: tuple[bytes, int]) -> None:
    rows = DictRows()
    apply(rows, Stamp(Dot(A, 1), 1, 1, VersionVector()), Insert(Place(), (b"a",)))
    (element,) = lists.elements(rows)
    for change in (Remove((Named(element.id, (seen,)),)), Move(Named(element.id, (seen,)), Place())):
        apply(rows, Stamp(Dot(B, 1), 1, 1, VersionVector()), change)
    assert list(lists.elements(rows)) == [element]
