"""Marks: what a peer was ever known to hold, and when it is told that it holds less."""

from __future__ import annotations

from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.cluster import peer_state
from shoal.cluster.fetching import Learning
from shoal.cluster.messages import Digest, Have, Vectors
from shoal.cluster.peer_state import Mark, Send, SetBack
from shoal.crdt.dot import Origin, VersionVector
from shoal.errors import InvalidValue
from tests.cluster.replicas import ToyCluster, ToyReplica
from tests.support.retired import Past

A, B = Origin(b"a" * 16), Origin(b"b" * 16)


def vector(a: int = 0, b: int = 0) -> VersionVector:
    return VersionVector({A: a, B: b})


def told(mark: Mark) -> dict[int, VersionVector]:
    return {partition: VersionVector.unpack(packed) for partition, packed in mark.telling()}


def test_a_peer_without_a_mark_counts() -> None:
    assert Mark().is_held


def test_a_peer_counts_once_each_partition_was_compared() -> None:
    mark = Mark({1: vector(3), 2: vector(1)})
    assert not mark.is_held
    assert not mark.compare({1: vector(3)})
    assert not mark.is_held
    assert not mark.compare({2: vector(1, 5)})
    assert mark.is_held


def test_a_peer_that_holds_less_is_told_of_what_is_missing_alone() -> None:
    mark = Mark({1: vector(3, 7), 2: vector(1)})
    assert mark.compare({1: vector(4, 2), 2: vector(1)})
    assert told(mark) == {1: vector(0, 7)}
    assert not mark.is_held


def test_it_is_not_told_anew_while_it_catches_up() -> None:
    mark = Mark({1: vector(3, 7)})
    assert mark.compare({1: vector(0, 2)})
    number = mark.number
    assert not mark.compare({1: vector(3, 2)})
    assert mark.number == number
    assert not mark.compare({1: vector(3, 7)})
    assert mark.is_held
    assert told(mark) == {}


def test_words_on_a_link_are_compared_with_earlier_knowledge() -> None:
    """Messages of one link may overtake each other: an old vector is no sign of a loss."""
    mark = Mark({1: vector(3)})
    mark.note(1, vector(9))
    assert not mark.compare({1: vector(3)})
    mark.begin()
    assert mark.compare({1: vector(3)})


def test_a_mark_is_lowered_once_its_peer_has_caught_up_as_far_as_it_can() -> None:
    mark = Mark({1: vector(3, 7)})
    mark.compare({1: vector(2)})
    mark.telling()
    assert list(mark.told) == [1]
    assert not mark.settle({1: vector(3)})
    assert mark.is_held
    assert mark.unwritten == {(1, B): None}
    mark.begin()
    assert not mark.compare({1: vector(3)})


def test_changed_marks_are_to_be_written() -> None:
    mark = Mark({1: vector(3)})
    mark.note(1, vector(2))
    assert mark.unwritten == {}
    mark.note(1, vector(4, 1))
    mark.note(2, vector(1))
    assert mark.unwritten == {(1, A): 4, (1, B): 1, (2, A): 1}


def test_entries_without_room_are_told_after_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_state, "TOLD_DOTS_MAX", 2)
    mark = Mark({partition: vector(1) for partition in range(5)})
    mark.compare(dict.fromkeys(range(5), vector()))
    seen: list[int] = []
    for _ in range(3):
        seen += told(mark)
        number = mark.number
        mark.settle(dict.fromkeys(mark.told, vector()))
        assert mark.number > number
    assert seen == [0, 1, 2, 3, 4]
    assert mark.is_held


@given(st.lists(st.tuples(st.sampled_from(["note", "compare", "begin"]), st.integers(0, 5), st.integers(0, 5)), max_size=30))
def test_a_directory_that_lost_nothing_is_never_told(steps: list[tuple[str, int, int]]) -> None:
    mark = Mark()
    holds = vector()
    at_link = vector()
    for what, a, b in steps:
        holds = holds.join(vector(a, b))
        if what == "note":
            mark.note(1, holds)
        elif what == "begin":
            mark.begin()
            at_link = holds
        else:
            assert not mark.compare({1: at_link.join(vector(a, b))})
    assert told(mark) == {}


class Held:
    def __init__(self) -> None:
        self.vectors: dict[int, VersionVector] = {}

    def __call__(self, partition: int) -> VersionVector:
        return self.vectors.get(partition, VersionVector())


def test_a_node_that_was_set_back_waits_for_what_it_once_held() -> None:
    held = Held()
    learning = Learning(held)
    learning.owe({7: vector(4)})
    for peer in (b"b", b"c", b"d"):
        learning.equal(peer)
    others = {b"b", b"c", b"d", b"e"}
    assert learning.lacking == 4
    assert not learning.is_done(others, needed=3, everyone=4)
    held.vectors[7] = vector(4)
    assert learning.is_done(others, needed=3, everyone=4)


def test_it_waits_no_more_once_it_holds_all_that_all_others_hold() -> None:
    learning = Learning(Held(), {7: vector(4)})
    others = {b"b", b"c"}
    for peer in sorted(others):
        assert not learning.is_done(others, needed=1, everyone=2)
        learning.equal(peer)
    assert learning.is_done(others, needed=1, everyone=2)


def test_bytes_that_are_no_vector_are_refused() -> None:
    cluster = ToyCluster(2, Random(1))
    one, other = cluster.replicas
    with pytest.raises(InvalidValue, match="no version vector"):
        one.machine.receive(other.name, Digest(b"", once=[(1, b"torn")], number=1), 0.0)


def test_a_node_that_holds_all_that_it_is_told_of_answers_and_is_no_learner() -> None:
    cluster = ToyCluster(2, Random(1))
    one, other = cluster.replicas
    dot = one.write(3).dot
    one.sync()
    one.machine.take_outbox()
    once = VersionVector({dot.origin: 1})
    one.machine.receive(other.name, Digest(one.machine.digest(), once=[(3, once.pack())], number=1), 0.0)
    assert one.machine.learning is None
    assert one.machine.take_outbox() == [Send((other.name,), Vectors([(3, once.pack())], answer=False))]


def test_a_node_that_is_told_again_has_nothing_new_to_record() -> None:
    one, other = ToyCluster(2, Random(1)).replicas
    for number, once, records in ((1, vector(3), 1), (1, vector(3), 0), (2, vector(2), 0), (3, vector(3, 1), 1)):
        one.machine.take_outbox()
        one.machine.receive(other.name, Digest(b"", once=[(3, once.pack())], number=number), 0.0)
        assert one.machine.take_outbox().count(SetBack(other.name)) == records
    assert one.machine.learning is not None
    assert one.machine.learning.owed == {3: vector(3, 1)}


def test_a_node_that_has_caught_up_and_is_told_late_once_more_goes_on() -> None:
    one, other = ToyCluster(2, Random(1)).replicas
    told = Digest(b"", once=[(3, vector(3).pack())], number=1)
    one.machine.receive(other.name, told, 0.0)
    one.machine.admit_itself()
    one.machine.receive(other.name, told, 0.0)
    assert one.machine.learning is None
    one.machine.receive(other.name, msgspec.structs.replace(told, number=2), 0.0)
    assert one.machine.learning is not None


@pytest.mark.answers("mark-is-lowered-too-early")
def test_a_peer_that_has_caught_up_counts_once_it_has_said_what_it_holds() -> None:
    """Some of it may be lost for good: the mark is lowered to what the peer says, and not to what was known by then."""
    one, other = ToyCluster(2, Random(1)).replicas
    one.machine.receive(other.name, Vectors([(3, vector(5).pack())], answer=False), 0.0)
    one.machine.admitted(other.name)
    one.machine.receive(other.name, Vectors([(3, vector(2).pack())], answer=False), 0.0)
    one.machine.take_outbox()
    one.machine.receive(other.name, Digest(b"", heard=one.machine.mark(other.name).number), 0.0)
    assert not one.machine.is_member(other.name)
    asks = Send((other.name,), Vectors([(3, one.durable(3).pack())], answer=True))
    assert asks in one.machine.take_outbox()
    one.machine.receive(other.name, Vectors([(3, vector(4).pack())], answer=False), 0.0)
    assert one.machine.is_member(other.name)
    for holds, counts in ((4, True), (3, False)):
        one.machine.admitted(other.name)
        one.machine.receive(other.name, Digest(b""), 0.0)
        one.machine.receive(other.name, Vectors([(3, vector(holds).pack())], answer=False), 0.0)
        assert one.machine.is_member(other.name) is counts


@pytest.mark.answers("seed-373111")
@pytest.mark.parametrize(("learner", "is_owed"), [(True, False), (False, True)])
def test_a_learner_may_not_know_that_an_origin_was_retired(
    monkeypatch: pytest.MonkeyPatch, learner: bool, is_owed: bool
) -> None:
    """As a restored copy of a directory. It says what it means once it has learnt."""
    one, other = ToyCluster(2, Random(1)).replicas
    held = vector(3).retire([], Past({}, 9))
    monkeypatch.setattr(one, "durable", lambda partition: held)
    once = VersionVector({Origin(b"r" * 16): 2})
    one.machine.receive(other.name, Digest(b"", once=[(3, once.pack())], number=1, learner=learner), 0.0)
    assert (one.machine.learning is not None) is is_owed


GONE = Origin(b"g" * 16)
"""An origin that a peer has retired."""


@pytest.mark.answers("node-with-an-empty-disk-remembers")
def test_a_mark_names_no_origin_that_its_peer_says_it_has_retired() -> None:
    """The peer forgets such an origin in time, and would then be told that it lacks operations which it once held."""
    one, other = ToyCluster(2, Random(1)).replicas
    one.machine.receive(other.name, Have([(3, A, 4), (3, GONE, 2)], []), 0.0)
    assert marked(one, other) == VersionVector({A: 4, GONE: 2})
    ends, times = VersionVector({GONE: 2}), VersionVector({GONE: 77})
    said = Vectors([(3, vector(4, 1).pack())], answer=False, retired=[(3, ends.pack(), times.pack())])
    one.machine.receive(other.name, said, 0.0)
    assert marked(one, other) == vector(4, 1)
    assert one.machine.known(other.name).vector(3)[GONE] == 2
    one.machine.admitted(other.name)
    one.machine.receive(other.name, Digest(b""), 0.0)
    one.machine.receive(other.name, Vectors([(3, vector(4, 1).pack())], answer=False), 0.0)
    assert one.machine.mark(other.name).is_held


@pytest.mark.answers("node-with-an-empty-disk-remembers")
def test_a_peer_that_is_set_back_to_before_it_retired_an_origin_is_told() -> None:
    """Its mark names the operation that retired, though not the origin."""
    one, other = ToyCluster(2, Random(1)).replicas
    ends, times = VersionVector({GONE: 2}), VersionVector({GONE: 77})
    said = Vectors([(3, vector(4, 1).pack())], answer=False, retired=[(3, ends.pack(), times.pack())])
    one.machine.receive(other.name, Have([(3, A, 4), (3, GONE, 2)], []), 0.0)
    one.machine.receive(other.name, said, 0.0)
    assert marked(one, other) == vector(4, 1)
    one.machine.admitted(other.name)
    one.machine.receive(other.name, Digest(b""), 0.0)
    before = VersionVector({A: 4, GONE: 2})
    one.machine.receive(other.name, Vectors([(3, before.pack())], answer=False), 0.0)
    assert told(one.machine.mark(other.name)) == {3: vector(0, 1)}


@pytest.mark.answers("node-with-an-empty-disk-remembers")
def test_retirements_heard_by_a_new_replica_are_unmarked() -> None:
    """It has nothing yet, so it takes all that its peer has retired for operations that it lacks."""
    one, other = ToyCluster(2, Random(1)).replicas
    ends, times = VersionVector({GONE: 2}), VersionVector({GONE: 77})
    said = Vectors([(3, vector(4).pack())], answer=False, retired=[(3, ends.pack(), times.pack())])
    one.machine.receive(other.name, said, 0.0)
    one.machine.receive(other.name, Have([(3, A, 5)], []), 0.0)
    assert marked(one, other) == vector(5)


@pytest.mark.answers("node-with-an-empty-disk-remembers")
def test_a_snapshot_may_bring_an_origin_as_retired_that_is_in_a_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = ToyCluster(2, Random(1)).replicas
    one.machine.receive(other.name, Have([(3, A, 4), (3, GONE, 2)], []), 0.0)
    assert marked(one, other) == VersionVector({A: 4, GONE: 2})
    held = vector(4).retire([], Past({GONE: 77}, 0, lasts={GONE: 2}))
    monkeypatch.setattr(one, "applied", lambda partition: held)
    one.machine.replaced(3, 0.0)
    assert marked(one, other) == vector(4)
    assert one.machine.mark(other.name).unwritten[3, GONE] is None


def marked(one: ToyReplica, other: ToyReplica) -> VersionVector:
    """What `one` would tell `other` that it once held."""
    return one.machine.mark(other.name).vector(3)


def test_a_mark_grows_with_what_its_peer_claims() -> None:
    mark = Mark({1: vector(3, 2)})
    mark.note(1, vector(1, 7))
    assert mark.vector(1) == vector(3, 7)
