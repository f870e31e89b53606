from __future__ import annotations

from random import Random

import pytest

from shoal.cluster.knowledge import PART_BYTES, Knowledge, Parts
from shoal.crdt.dot import Dot, Origin, VersionVector
from shoal.errors import BadOperation, InvalidValue
from tests.cluster.replicas import ToyReplica

THEIRS = Origin(b"t" * 16)


@pytest.fixture
def replica() -> ToyReplica:
    return ToyReplica(1, Random(1))


@pytest.mark.answers("yjs-state-vector-is-used-as-a-digest")
def test_equal_durable_vectors_have_equal_digests_and_others_have_not() -> None:
    one, other = ToyReplica(1, Random(1)), ToyReplica(1, Random(2))
    assert Parts(one).digest() == Parts(other).digest()
    for replica in (one, other):
        replica.write(3)
        replica.sync()
    assert Parts(one).digest() == Parts(other).digest()
    other.write(3)
    other.sync()
    assert Parts(one).digest() != Parts(other).digest()


def test_the_same_vector_in_another_partition_has_another_digest() -> None:
    one, other = ToyReplica(1, Random(1)), ToyReplica(1, Random(1))
    one.write(3)
    other.write(4)
    for replica in (one, other):
        replica.sync()
    assert Parts(one).digest() != Parts(other).digest()


def test_writes_that_are_not_durable_are_in_no_digest(replica: ToyReplica) -> None:
    empty = Parts(replica).digest()
    replica.write(3)
    assert Parts(replica).digest() == empty


def test_a_hash_is_made_anew_when_its_vector_changed(replica: ToyReplica) -> None:
    parts = Parts(replica)
    replica.write(3)
    replica.sync()
    before = parts.all()
    replica.write(3)
    replica.sync()
    assert parts.all() == Parts(replica).all() != before
    assert len(before[3]) == PART_BYTES


def test_a_peer_has_told_all_once_all_that_differed_was_told(replica: ToyReplica) -> None:
    known = Knowledge(replica)
    known.take([(1, THEIRS, 5)])
    assert not known.is_told, "what it acknowledges is not all that it holds"
    known.differs([1, 2])
    known.take_vector(1, VersionVector({THEIRS: 5}).pack())
    assert not known.is_told
    known.differs([1, 3])
    assert known.is_told, "what was lost on the way is equal by now, and what came since is not what it held then"


def test_a_peer_with_an_equal_digest_has_told_all(replica: ToyReplica) -> None:
    known = Knowledge(replica)
    known.take_all({})
    assert known.is_told


def test_a_peers_known_holdings_only_grow(replica: ToyReplica) -> None:
    known = Knowledge(replica)
    known.take([(1, THEIRS, 5)])
    known.take([(1, THEIRS, 3)])
    assert known.vector(1) == VersionVector({THEIRS: 5})
    assert known.holds(1, VersionVector({THEIRS: 5}))
    assert not known.holds(1, VersionVector({THEIRS: 6}))
    assert not known.holds(2, VersionVector({THEIRS: 1}))


def test_only_what_grew_is_told_to_have_advanced(replica: ToyReplica) -> None:
    known = Knowledge(replica)
    known.take([(1, THEIRS, 5), (2, THEIRS, 0)])
    assert known.advanced == {1}
    known.advanced.clear()
    known.take([(1, THEIRS, 5)])
    assert known.advanced == set()


def test_a_peers_lead_begins_after_what_is_held_here(replica: ToyReplica) -> None:
    known = Knowledge(replica)
    known.take([(1, THEIRS, 5), (1, b"o" * 16, 2)])
    assert dict(known.ahead_of(1, VersionVector({THEIRS: 3}))) == {THEIRS: range(4, 6), Origin(b"o" * 16): range(1, 3)}
    assert known.totals.first(9) == [(Origin(b"o" * 16), 2), (THEIRS, 5)]
    assert known.totals.first(1) == [(Origin(b"o" * 16), 2)]
    assert (known.totals.operations, len(known.totals)) == (7, 2)


def test_an_equal_peer_holds_all_that_is_durable(replica: ToyReplica) -> None:
    known = Knowledge(replica)
    replica.write(3)
    replica.sync()
    replica.write(3)
    known.take_all(Parts(replica).held())
    assert known.vector(3) == VersionVector({replica.origin: 1})


def test_nobody_holds_what_was_not_issued(replica: ToyReplica) -> None:
    known = Knowledge(replica)
    with pytest.raises(BadOperation, match="not issued"):
        known.take([(3, replica.origin, 1)])
    replica.write(3)
    known.take([(3, replica.origin, 1)])  # Others may sync it first.
    with pytest.raises(BadOperation, match="not issued"):
        known.take_vector(3, Dot(replica.origin, 2).pack())


@pytest.mark.answers("seed-3115")
def test_a_vector_that_was_overtaken_does_not_take_the_place_of_a_later_one(replica: ToyReplica) -> None:
    known = Knowledge(replica)
    later = VersionVector({THEIRS: 2})
    known.take_vector(1, later.pack())
    known.take_vector(1, VersionVector({THEIRS: 1}).pack())
    assert known.whole(1) == later


@pytest.mark.parametrize("sequence", [-1, 1 << 63])
def test_a_sequence_that_cannot_be_is_refused(replica: ToyReplica, sequence: int) -> None:
    known = Knowledge(replica)
    with pytest.raises((BadOperation, InvalidValue)):
        known.take([(1, THEIRS, sequence)])
    assert known.vector(1) == VersionVector()


@pytest.mark.parametrize("packed", [b"x", Dot(THEIRS, 0).pack(), Dot(THEIRS, 1).pack() * 2])
def test_a_vector_has_one_form_and_no_other(replica: ToyReplica, packed: bytes) -> None:
    with pytest.raises(InvalidValue):
        Knowledge(replica).take_vector(1, packed)


class Deleting(ToyReplica):
    """A replica that holds a deletion in partition 1."""

    def durable(self, partition: int, /) -> VersionVector:
        return super().durable(partition).join(self.synced)

    synced = VersionVector()

    def endings(self, partition: int) -> VersionVector:
        return DELETION if partition == 1 else VersionVector()


DELETION = VersionVector({THEIRS: 1})


def test_own_operations_count_once_the_deletions_of_who_holds_them_are_here(replica: ToyReplica) -> None:
    known, own = issued_by(replica)
    assert known.acknowledge([(1, replica.origin, 1)], [(1, DELETION.pack())]) == [1]
    assert not known.holds(1, own)
    replica._applied[1] = own.join(DELETION)
    known.prove([1])
    assert known.holds(1, own)
    assert known.advanced == {1}


def test_only_an_acknowledgement_proves_that_a_write_is_alive(
    replica: ToyReplica,
) -> None:
    known, own = issued_by(replica)
    known.take([(1, replica.origin, 1)])
    known.take_vector(1, own.join(DELETION).pack())
    assert not known.holds(1, own)
    replica._applied[1] = own.join(DELETION)
    known.take_vector(1, own.join(DELETION).pack())
    assert known.holds(1, own)


def test_a_deletion_is_named_until_the_peer_is_known_to_hold_it() -> None:
    replica = Deleting(1, Random(1))
    replica.synced = DELETION
    known = Knowledge(replica)
    assert known.needs(2) is None
    assert known.needs(1) == DELETION
    known.take([(1, THEIRS, 1)])
    assert known.needs(1) is None


def test_a_deletion_is_named_once_it_is_durable() -> None:
    replica = Deleting(1, Random(1))
    known = Knowledge(replica)
    assert known.needs(1) is None
    replica.synced = DELETION
    assert known.needs(1) == DELETION


def test_of_deletions_of_one_origin_those_are_named_that_are_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    replica = Deleting(1, Random(1))
    monkeypatch.setattr(replica, "endings", lambda _: VersionVector({THEIRS: 7, replica.origin: 2}))
    replica.synced = VersionVector({THEIRS: 3, Origin(bytes(16)): 9})
    assert Knowledge(replica).needs(1) == VersionVector({THEIRS: 3})


def issued_by(replica: ToyReplica) -> tuple[Knowledge, VersionVector]:
    replica.write(1)
    replica.sync()
    return Knowledge(replica), VersionVector({replica.origin: 1})


def test_a_digest_is_made_anew_only_if_a_vector_changed(replica: ToyReplica, monkeypatch: pytest.MonkeyPatch) -> None:
    parts, made = Parts(replica), []
    monkeypatch.setattr(parts, "all", lambda: made.append(1) or Parts(replica).all())  # type: ignore[func-returns-value]
    for writes in (1, 1, 0, 0, 1, 0):
        for _ in range(writes):
            replica.write(3)
        replica.sync()
        assert parts.digest() == Parts(replica).digest()
    assert len(made) == 3


def test_exact_holdings_must_be_repeated_in_a_new_epoch(replica: ToyReplica) -> None:
    known, theirs = Knowledge(replica), VersionVector({THEIRS: 2})
    known.take_vector(1, theirs.pack())
    known.begin_epoch()
    assert known.whole(1) is None
    known.take_vector(1, theirs.pack(), is_current=False)
    assert known.whole(1) is None
    assert known.vector(1) == theirs
    known.take_vector(1, theirs.pack())
    assert known.whole(1) == theirs


@pytest.mark.answers("operation-of-a-removed-directory-arrives-late")
def test_equal_digests_of_an_older_epoch_do_not_say_what_a_peer_holds_exactly(replica: ToyReplica) -> None:
    known, parts = Knowledge(replica), Parts(replica)
    replica.write(3)
    replica.sync()
    known.take_all(parts.held(), is_current=False)
    assert known.whole(3) is None
    known.take_all(parts.held())
    assert known.whole(3) == replica.durable(3)
    known.begin_epoch()
    known.take_all(parts.held())
    assert known.whole(3) == replica.durable(3)


# ── what a peer makes up ──────────────────────────────────────────────────────


def _invented(count: int, *, seed: int = 0) -> list[tuple[int, bytes, int]]:
    return [(number % 8, (seed << 32 | number).to_bytes(16, "big"), 1) for number in range(1, count + 1)]


def test_a_peer_that_names_too_many_unknown_logs_is_refused(replica: ToyReplica) -> None:
    known = Knowledge(replica, claims_max=100)
    known.take(_invented(100))
    with pytest.raises(BadOperation, match="makes them up"):
        known.take(_invented(1, seed=1))


def test_logs_that_are_here_by_now_are_not_counted(replica: ToyReplica) -> None:
    known = Knowledge(replica, claims_max=10)
    for nth in range(10):
        named = _invented(9, seed=nth)
        known.take(named)
        for partition, origin, sequence in named:
            replica._applied[partition] = replica.applied(partition).join(VersionVector({Origin(origin): sequence}))
    assert sum(len(known.claimed(partition)) for partition in range(8)) == 0


def test_lies_of_a_peer_on_older_links_are_counted(replica: ToyReplica) -> None:
    before = {1: VersionVector({Origin(origin): 1 for _, origin, _ in _invented(100)})}
    known = Knowledge(replica, claims_max=100, before=before)
    with pytest.raises(BadOperation, match="makes them up"):
        known.take(_invented(1, seed=1))
