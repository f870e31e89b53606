"""What a node must hold before it counts, and that a majority of the others is enough for it."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.cluster.fetching import Ends, Learning
from shoal.crdt.dot import Origin, VersionVector

ORIGIN = Origin(b"o" * 16)


def upto(sequence: int) -> VersionVector:
    return VersionVector({ORIGIN: sequence} if sequence else {})


class Held:
    """Vectors of this node's own."""

    def __init__(self) -> None:
        self.vectors: dict[int, VersionVector] = {}

    def __call__(self, partition: int) -> VersionVector:
        return self.vectors.get(partition, VersionVector())


def test_it_waits_for_what_each_of_so_many_has_named() -> None:
    held = Held()
    learning = Learning(held)
    assert not learning.is_done({b"a", b"b"}, needed=2, everyone=2)
    learning.equal(b"a")
    learning.differs(b"b", [7])
    assert not learning.is_done({b"a", b"b"}, needed=2, everyone=2)
    assert learning.is_done({b"a", b"b"}, needed=1, everyone=2)
    learning.vector(b"b", 7, upto(5))
    assert learning.heard(b"b")
    held.vectors[7] = upto(5)
    assert learning.is_done({b"a", b"b"}, needed=2, everyone=2)


def test_an_owner_that_was_not_asked_for_counts_for_nobody() -> None:
    learning = Learning(Held())
    learning.equal(b"stranger")
    assert not learning.is_done({b"a", b"b"}, needed=1, everyone=2)


def test_the_first_word_of_an_owner_is_enough() -> None:
    held = Held()
    learning = Learning(held)
    learning.differs(b"a", [1])
    learning.vector(b"a", 1, upto(3))
    held.vectors[1] = upto(3)
    assert not learning.lacks({b"a"})
    learning.differs(b"a", [1, 2])
    learning.vector(b"a", 1, upto(9))
    assert learning.is_done({b"a"}, needed=1, everyone=2)


def test_a_vector_that_was_lost_on_the_way_is_waited_for_until_it_is_equal() -> None:
    learning = Learning(Held())
    learning.differs(b"a", [1, 2])
    assert not learning.is_done({b"a"}, needed=1, everyone=2)
    learning.differs(b"a", [2])  # By now the first is equal.
    learning.vector(b"a", 2, VersionVector())
    assert learning.is_done({b"a"}, needed=1, everyone=2)


@pytest.mark.answers("two-learners-learn-from-each-other")
def test_another_learner_may_have_forgotten_too_and_is_counted_only_if_all_others_were_heard() -> None:
    learning = Learning(Held())
    for peer in (b"a", b"b", b"c"):
        learning.equal(peer)
    others = {b"a", b"b", b"c", b"d"}
    assert learning.is_done(others, needed=3, everyone=4)
    assert not learning.is_done(others, needed=3, everyone=4, learners={b"c"})
    learning.equal(b"d")
    assert learning.is_done(others, needed=3, everyone=4, learners={b"c", b"d"})


def test_a_learners_word_does_not_count_afterwards() -> None:
    learning = Learning(Held())
    learning.equal(b"a")
    learning.forget(b"a")
    assert not learning.is_done({b"a"}, needed=1, everyone=2)


def test_a_node_without_others_has_nothing_to_learn() -> None:
    assert Learning(Held()).is_done(set(), needed=0, everyone=0)


@given(st.integers(2, 9), st.data())
def test_a_majority_of_the_others_names_every_write_that_a_quorum_had(size: int, data: st.DataObject) -> None:
    """For each write that counted node 0, which has forgotten it: every majority of the others has one that holds it."""
    others = set(range(1, size))
    quorum = size // 2 + 1
    holders = data.draw(st.sets(st.sampled_from(sorted(others)), min_size=quorum - 1))
    for heard in combinations(sorted(others), len(others) // 2 + 1):
        assert set(heard) & holders


def test_vectors_told_before_fencing_do_not_count() -> None:
    held = Held()
    ends = Ends(held)
    ends.equal(b"a")
    assert not ends.known_by(b"a"), "it may still take what an earlier opening pushed"
    ends.fence(b"a")
    assert not ends.known_by(b"a"), "what it told may lack that"
    ends.differs(b"a", [7])
    ends.vector(b"a", 7, upto(3))
    assert not ends.known_by(b"a")
    held.vectors[7] = upto(3)
    assert ends.known_by(b"a")


def test_that_a_peer_fenced_is_heard_once() -> None:
    ends = Ends(Held())
    ends.fence(b"a")
    ends.equal(b"a")
    ends.fence(b"a")
    assert ends.known_by(b"a")
