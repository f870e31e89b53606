"""The protocol as a machine: whatever becomes of its messages, replicas that can talk come to hold the same."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.cluster import messages, operation
from shoal.cluster.messages import Busy, Digest, Have, Push, Shipment, Supply, Trouble, Truncated, Vectors, Want
from shoal.cluster.operation import Body
from shoal.cluster.peer_state import Apply, Mark, Reset, Send
from shoal.cluster.replication import Replication
from shoal.crdt.dot import Dot, Origin, VersionVector, origin_of
from shoal.errors import BadOperation, InvalidValue, ShoalError
from tests.cluster.replicas import LIMITS, SUPPLY_OPERATIONS, ToyCluster, ToyReplica
from tests.support.examples import examples


def run(seed: int, *, size: int = 3, steps: int = 300) -> ToyCluster:
    """A faulty run, watched at each step; healed, but not settled."""
    cluster = ToyCluster(size, Random(seed))
    cluster.faulty = 0.5
    for _ in range(steps):
        cluster.step()
        for replica in cluster.replicas:
            assert waiting_bytes(replica.machine) <= LIMITS.early_bytes_max
            assert_wants_are_single(replica.machine)
            assert_counts_are_right(replica)
    cluster.heal()
    return cluster


def assert_all_tell(cluster: ToyCluster) -> None:
    for _ in range(200):
        cluster.round()
    assert all(state.known.is_told for replica in cluster.replicas for state in replica.machine._peers.values())


def assert_counts_are_right(replica: ToyReplica) -> None:
    for state in replica.machine._peers.values():
        vectors = {partition: state.known.vector(partition) for partition in range(4)}
        shared = [
            min(sequence, replica.durable(partition)[origin])
            for partition, vector in vectors.items()
            for origin, sequence in vector.items()
        ]
        assert state.known.totals.operations == sum(sum(vector.values()) for vector in vectors.values())
        assert (state.known.shared, sum(map(state.known.shared_in, vectors))) == (sum(shared), sum(shared))


def waiting_bytes(machine: Replication) -> int:
    return machine._delivery.waiting_bytes


def assert_wants_are_single(machine: Replication) -> None:
    pending = [source.pending for source in machine._fetching._sources.values() if source.pending]
    wanted = [partition for want in pending for partition in want.first]
    assert len(wanted) == len(set(wanted)), "a partition is wanted from one peer at a time"


@pytest.mark.answers("state-is-a-fold")
@examples(60)
@given(seed=st.integers(0, 2**32), size=st.integers(3, 4))
def test_after_any_faults_all_replicas_hold_the_same(seed: int, size: int) -> None:
    cluster = run(seed, size=size)
    cluster.settle()
    first, *others = [replica.logs for replica in cluster.replicas]
    assert all(logs == first for logs in others)
    assert_all_tell(cluster)


@examples(25)
@given(seed=st.integers(0, 2**32))
def test_without_any_push_replicas_come_to_hold_the_same(seed: int) -> None:
    cluster = ToyCluster(3, Random(seed))
    for replica in cluster.replicas:
        for _ in range(10):
            replica.write(0)
        replica.sync()
        replica.machine.take_outbox()  # Lost, all of it.
    cluster.settle()


def missed(count: int) -> ToyCluster:
    """Two replicas, of which the second missed what the first has written, until they are equal."""
    cluster = ToyCluster(2, Random(1))
    writer = cluster.replicas[0]
    for _ in range(count):
        writer.write(0)
    writer.sync()
    writer.machine.take_outbox()
    cluster.settle(rounds=10 * count)
    return cluster


@pytest.mark.answers("queues-are-bounded")
@pytest.mark.parametrize("count", [SUPPLY_OPERATIONS * 4, SUPPLY_OPERATIONS * 16, SUPPLY_OPERATIONS * 64])
def test_catching_up_takes_messages_in_proportion_to_what_was_missed(count: int) -> None:
    # A Want, a Supply and an acknowledgement per answer; a few to find out, and to compare while it lasts.
    assert missed(count).carried <= 4 * count / SUPPLY_OPERATIONS + 20


def pair() -> tuple[ToyReplica, ToyReplica]:
    random = Random(1)
    ours, theirs = ToyReplica(1, random), ToyReplica(2, random)
    ours.machine.linked(theirs.name)
    ours.machine.take_outbox()
    return ours, theirs


@pytest.mark.answers("silent-peer-keeps-a-node-from-asking")
def test_a_peer_that_does_not_answer_does_not_keep_the_others_from_being_asked() -> None:
    random = Random(1)
    ours, silent, sound = (ToyReplica(name, random) for name in (1, 2, 3))
    shipment = sound.write(0)
    for peer in (silent, sound):
        ours.machine.linked(peer.name)
        ours.machine.receive(peer.name, Have([(0, shipment.origin, 1)]), 0)
        ours.machine.receive(peer.name, Vectors([(0, VersionVector({shipment.dot.origin: 1}).pack())], answer=False), 0)
    ours.machine.take_outbox()
    asked: list[bytes] = []
    for tick in range(200):
        ours.machine.tick(tick * LIMITS.answer_s / 3)
        ours.carry_out(0)
        asked += [peer for peer, message in ours.sent if isinstance(message, Want)]
        ours.sent.clear()
        if asked[-1:] == [sound.name]:
            break
    assert asked == [silent.name, sound.name]


def test_a_peer_that_does_not_answer_is_left_alone_for_longer_each_time_up_to_a_bound() -> None:
    ours, theirs = pair()
    shipment = theirs.write(0)
    ours.machine.receive(theirs.name, Vectors([(0, VersionVector({shipment.dot.origin: 1}).pack())], answer=False), 0)
    ours.machine.take_outbox()
    asked: list[int] = []
    for tick in range(1000):
        ours.machine.tick(tick * LIMITS.answer_s / 4)
        ours.carry_out(0)
        asked += [tick for _, message in ours.sent if isinstance(message, Want)]
        ours.sent.clear()
    gaps = [(later - earlier) * LIMITS.answer_s / 4 for earlier, later in pairwise(asked)]
    assert gaps == sorted(gaps)
    assert gaps[1] > gaps[0]
    assert gaps[-1] <= LIMITS.pause_s_max + 2 * LIMITS.answer_s


def test_nothing_is_pushed_before_it_is_issued() -> None:
    ours, _ = pair()
    ours.write(0)
    ours.carry_out(0)
    assert ours.sent == []
    ours.sync()
    ours.carry_out(0)
    assert [type(message) for _, message in ours.sent] == [Push]


def test_a_push_proves_nothing_about_what_its_sender_holds() -> None:
    ours, theirs = pair()
    theirs.write(0)
    ours.take(theirs.name, Push([theirs.write(0)]), 0)
    assert not ours.machine.known(theirs.name).vector(0)


def test_peers_are_told_with_a_tick_that_own_operations_are_durable() -> None:
    ours, theirs = pair()
    ours.machine.stored([], {(0, ours.origin): 3})
    ours.carry_out(0)
    assert ours.sent == []
    ours.machine.tick(0)
    ours.carry_out(0)
    assert (theirs.name, Have([(0, ours.origin, 3)])) in ours.sent


def test_operations_that_wait_of_a_past_opening_are_dropped() -> None:
    ours, theirs = pair()
    theirs.origin = origin_of(theirs.name, bytes(16))
    theirs.write(0)
    ours.take(theirs.name, Push([theirs.write(0)]), 0)
    assert ours.machine.early == 1
    ours.machine.ended(theirs.name)
    assert ours.machine.early == 0


def test_nothing_is_acknowledged_before_it_is_durable() -> None:
    ours, theirs = pair()
    shipment = theirs.write(0)
    ours.take(theirs.name, Push([shipment]), 0)
    ours.carry_out(0)
    assert ours.sent == []
    ours.sync()
    ours.carry_out(0)
    assert ours.sent == [(theirs.name, Have([(0, theirs.origin, 1)]))]


@pytest.mark.answers("vectors-cover-durable-prefixes")
def test_a_vector_that_is_sent_names_nothing_that_is_not_durable() -> None:
    ours, theirs = pair()
    ours.write(0)
    ours.take(theirs.name, Vectors([(0, b"")], True), 0)
    ours.carry_out(0)
    assert ours.sent == [(theirs.name, Vectors([(0, b"")], False))]


def test_a_push_is_cut_into_messages_of_bounded_size() -> None:
    ours, _ = pair()
    for _ in range(100):
        ours.write(0)
    ours.sync()
    ours.carry_out(0)
    sizes = [len(messages.encode(message)) for _, message in ours.sent]
    assert len(sizes) > 1
    assert max(sizes) < LIMITS.push_bytes_max + 100


def wants(replica: ToyReplica) -> list[Want]:
    replica.carry_out(0)
    return [message for _, message in replica.sent if isinstance(message, Want)]


def told_of_five() -> tuple[ToyReplica, ToyReplica]:
    """A replica that was told of five operations which it lacks."""
    ours, theirs = pair()
    vector = VersionVector({theirs.origin: 5})
    ours.take(theirs.name, Vectors([(0, vector.pack())], False), 0)
    return ours, theirs


def test_missing_operations_are_wanted_once_after_their_grace() -> None:
    ours, theirs = told_of_five()
    ours.machine.tick(LIMITS.grace_s / 2)
    assert wants(ours) == []
    for _ in range(3):
        ours.machine.tick(LIMITS.grace_s)
    assert [want.ranges for want in wants(ours)] == [[(0, theirs.origin, 1, 5)]]


def test_a_want_that_is_not_answered_in_time_is_sent_again() -> None:
    ours, _ = told_of_five()
    ours.machine.tick(1)
    ours.machine.tick(2.5)  # Its time is up; it is left alone for a while.
    ours.machine.tick(3.6)
    assert len(wants(ours)) == 2


def test_a_busy_peer_is_asked_again_when_it_said() -> None:
    ours, theirs = told_of_five()
    ours.machine.tick(1)
    [want] = wants(ours)
    ours.take(theirs.name, Busy(want.id, "busy", 700), 1)
    ours.machine.tick(1.6)
    assert len(wants(ours)) == 1
    ours.machine.tick(1.8)
    assert len(wants(ours)) == 2


def test_an_answer_to_another_want_is_not_taken_for_the_one_under_way() -> None:
    ours, theirs = told_of_five()
    ours.machine.tick(1)
    [want] = wants(ours)
    ours.take(theirs.name, Supply(want.id + 1, []), 1)
    ours.machine.tick(1.1)
    assert len(wants(ours)) == 1


def test_the_next_answer_is_asked_for_before_the_last_one_is_applied() -> None:
    ours, theirs = told_of_five()
    shipments = [theirs.write(0) for _ in range(2)]
    ours.machine.tick(1)
    [want] = wants(ours)
    ours.machine.supplied(theirs.name, Supply(want.id, shipments), 1)
    assert [want.ranges for want in wants(ours)] == [[(0, theirs.origin, 1, 5)], [(0, theirs.origin, 3, 5)]]


@pytest.mark.answers("node-that-is-refilled-receives-operations-twice")
def test_operations_being_applied_are_not_asked_for_again() -> None:
    random = Random(1)
    ours, one, other = (ToyReplica(number, random) for number in (1, 2, 3))
    shipments = [one.write(0) for _ in range(5)]
    vector = Vectors([(0, VersionVector({one.origin: 5}).pack())], False)
    for peer in (one, other):
        ours.machine.linked(peer.name)
        ours.take(peer.name, vector, 0)
    ours.machine.tick(1)
    [want] = wants(ours)
    [asked] = [peer for peer, message in ours.sent if isinstance(message, Want)]
    supplied, idle = (one, other) if asked == one.name else (other, one)
    ours.machine.supplied(supplied.name, Supply(want.id, shipments[:3]), 1)
    ours.machine.receive(supplied.name, Busy(wants(ours)[-1].id, "busy", 60_000), 1)
    ours.machine.tick(1.1)
    assert len(wants(ours)) == 3
    assert wants(ours)[-1].ranges == [(0, one.origin, 4, 5)]
    # What of it was not applied after all is asked for once the answer has been delivered.
    ours.machine.receive(idle.name, Busy(wants(ours)[-1].id, "busy", 0), 1.1)
    ours.machine.delivered(supplied.name)
    ours.machine.tick(1.2)
    assert wants(ours)[-1].ranges == [(0, one.origin, 1, 5)]


def reopened(replica: ToyReplica, openings: int) -> None:
    """As many openings of its directory, each of which wrote once."""
    for number in range(openings):
        replica.origin = Origin(number.to_bytes(16, "big"))
        replica.write(number % 20)
    replica.sync()
    replica.machine.take_outbox()


def test_vectors_that_are_compared_go_in_messages_within_their_bound() -> None:
    ours, theirs = pair()
    reopened(ours, 100)
    ours.take(theirs.name, messages.Parts([]), 0)
    ours.carry_out(0)
    sent = [message for _, message in ours.sent if isinstance(message, Vectors)]
    assert len(sent) > 1
    assert all(len(messages.encode(message)) <= LIMITS.vectors_bytes_max + 20 for message in sent)
    assert [partition for message in sent for partition, _ in message.vectors] == list(range(20))


def test_a_vector_that_passes_the_bound_alone_goes_alone() -> None:
    ours, theirs = pair()
    reopened(ours, 400)
    ours.take(theirs.name, messages.Parts([]), 0)
    ours.carry_out(0)
    assert [len(message.vectors) for _, message in ours.sent if isinstance(message, Vectors)] == [1] * 20


def test_a_new_replica_fetches_operations_of_many_openings() -> None:
    cluster = ToyCluster(2, Random(1))
    reopened(cluster.replicas[0], 1000)
    cluster.settle(rounds=10_000)


def refused(ours: ToyReplica, theirs: ToyReplica) -> Shipment:
    """The first operation of two, refused."""
    shipment = theirs.write(0)
    ours.machine.refused(theirs.name, shipment, BadOperation("it is bad", reason="content"), 0)
    ours.carry_out(0)
    return shipment


def test_an_operation_that_is_refused_is_told_to_its_sender_and_listed() -> None:
    ours, theirs = pair()
    refused(ours, theirs)
    assert ours.sent == [(theirs.name, Trouble(0, theirs.origin, 1, "content", "it is bad"))]
    assert ours.machine.quarantined() == [f"operation 1 of {theirs.origin.hex()} in partition 0: it is bad"]


def test_quarantined_operations_are_not_wanted_before_their_time() -> None:
    ours, theirs = pair()
    shipment = refused(ours, theirs)
    ours.take(theirs.name, Push([shipment, theirs.write(0)]), 1)
    ours.take(theirs.name, Vectors([(0, VersionVector({theirs.origin: 2}).pack())], False), 1)
    ours.machine.tick(2)
    assert (ours.applied(0), wants(ours)) == (VersionVector(), [])
    ours.take(theirs.name, Vectors([(0, VersionVector({theirs.origin: 2}).pack())], False), LIMITS.quarantine_s)
    ours.machine.tick(LIMITS.quarantine_s + 1)
    assert [want.ranges for want in wants(ours)] == [[(0, theirs.origin, 1, 2)]]


def test_a_sound_copy_ends_what_is_reported_of_a_quarantine() -> None:
    ours, theirs = pair()
    shipment = refused(ours, theirs)
    ours.take(theirs.name, Push([shipment]), LIMITS.quarantine_s + 1)
    ours.carry_out(0)
    ours.sync()
    assert ours.machine.quarantined() == []


def test_the_quarantine_is_bounded_and_keeps_the_newest() -> None:
    ours, theirs = pair()
    for partition in range(LIMITS.quarantine_max + 2):
        ours.machine.refused(theirs.name, Shipment(partition, theirs.origin, 1, b"", b"", b""), BadOperation("bad"), 0)
    listed = ours.machine.quarantined()
    assert len(listed) == LIMITS.quarantine_max
    assert "partition 5" in listed[-1]


def test_a_link_that_begins_anew_begins_with_nothing_known() -> None:
    ours, theirs = told_of_five()
    ours.machine.admitted(theirs.name)
    assert not ours.machine.known(theirs.name).holds(0, VersionVector({theirs.origin: 1}))


def test_equal_digests_end_the_comparison_and_count_as_all_being_held() -> None:
    ours, theirs = pair()
    ours.write(0)
    ours.sync()
    ours.machine.take_outbox()
    ours.take(theirs.name, Digest(ours.machine.digest()), 0)
    assert ours.machine.take_outbox() == []
    assert ours.machine.known(theirs.name).holds(0, VersionVector({ours.origin: 1}))


def test_a_hurried_node_asks_every_peer_at_once() -> None:
    ours, theirs = told_of_five()
    ours.machine.hurry(0, 10)
    ours.carry_out(0)
    assert ours.sent == [(theirs.name, Vectors([(0, b"")], True, 1))]
    ours.machine.tick(10.001)
    assert len(wants(ours)) == 1


def test_an_answer_to_an_earlier_question_is_none_to_a_later_one() -> None:
    """Found by seed 1179: a vector that was under way when it was asked for told less than the next one."""
    ours, theirs = pair()
    first = ours.machine.hurry(0, 0)
    second = ours.machine.hurry(0, 0)
    known = ours.machine.known(theirs.name)
    ours.take(theirs.name, Vectors([(0, b"")], False, first), 0)
    assert known.answered(0, first)
    assert not known.answered(0, second)
    ours.take(theirs.name, Vectors([(0, b"")], True, second), 0)
    assert not known.answered(0, second), "a question is no answer"
    ours.take(theirs.name, Vectors([(0, b"")], False, second), 0)
    assert known.answered(0, second)


@pytest.mark.answers("answer-of-a-learner-counts-later")
def test_questions_asked_before_a_peer_counted_confirm_nothing() -> None:
    ours, theirs = pair()
    digest, known = ours.machine.digest(), ours.machine.known(theirs.name)
    for _ in range(2):  # A peer that counts may be told that it was set back, and learn once more.
        ours.take(theirs.name, Digest(digest, learner=True), 0)
        first, second = ours.machine.hurry(0, 0), ours.machine.hurry(0, 0)
        ours.take(theirs.name, Vectors([(0, b"")], False, first), 0)
        ours.take(theirs.name, Digest(digest, learner=False), 0)
        ours.take(theirs.name, Vectors([(0, b"")], False, second), 0)
        assert known.answered(0, second)
        assert not known.confirmed(0, first)
        ours.take(theirs.name, Digest(digest, learner=False), 0)
        third = ours.machine.hurry(0, 0)
        ours.take(theirs.name, Vectors([(0, b"")], False, third), 0)
        assert known.confirmed(0, first)
        assert known.confirmed(0, third)


@examples(200)
@given(packed=st.binary(max_size=200), flips=st.lists(st.integers(0, 2**16), max_size=5), nth=st.integers(0, 6))
def test_no_message_makes_a_machine_raise_anything_but_a_shoal_error(packed: bytes, flips: list[int], nth: int) -> None:
    ours, theirs = pair()
    dot = Dot(theirs.origin, 1)
    body = operation.encode(Body(1, 1, [(b"o" * 16, 2)], None, b"payload"))
    shipment = Shipment(3, *dot, operation.chain(b"", 3, dot, body), body, b"")
    sound: list[messages.Message] = [
        Push([shipment]),
        Supply(1, [shipment]),
        Have([(3, b"o" * 16, 5)]),
        Vectors([(3, Dot(theirs.origin, 4).pack())], True),
        Want(1, [(3, theirs.origin, 1, 9)]),
        messages.Parts([(3, b"p" * 8)]),
        Busy(1, "busy", 5),
    ]
    altered = bytearray(messages.encode(sound[nth]))
    for flip in flips:
        altered[flip // 8 % len(altered)] ^= 1 << flip % 8
    for received in (packed, bytes(altered)):
        with suppress(ShoalError):
            ours.take(theirs.name, messages.decode(received), 0)
    ours.carry_out(0)
    ours.machine.tick(100)
    ours.carry_out(0)
    for _, message in ours.sent:
        messages.decode(messages.encode(message))


def test_a_vector_that_is_none_is_refused() -> None:
    ours, theirs = pair()
    with pytest.raises(InvalidValue):
        ours.take(theirs.name, Vectors([(0, b"no vector")], False), 0)


@pytest.mark.answers("seed-3115")
def test_peers_are_compared_with_in_rounds() -> None:
    ours = ToyReplica(1, Random(3))
    peers = [bytes([number]) * 16 for number in range(2, 7)]
    for peer in peers:
        ours.machine.admitted(peer)
        ours.machine.linked(peer)
    ours.machine.take_outbox()
    told: list[bytes] = []
    for nth in range(20):
        ours.machine.tick(nth * 2 * LIMITS.sync_interval_s)
        told += [peer for effect in ours.machine.take_outbox() if isinstance(effect, Send) for peer in effect.peers]
    assert [sorted(told[start : start + 5]) for start in range(0, 20, 5)] == [peers] * 4


def test_effects_come_in_the_order_they_were_made() -> None:
    ours, theirs = pair()
    ours.machine.issued([messages.encode_shipment(ours.write(0))])
    ours.machine.deliver(theirs.name, [theirs.write(0)], 0)
    assert [type(effect) for effect in ours.machine.take_outbox()] == [Send, Apply]


def test_a_peer_counts_once_it_said_so() -> None:
    ours, theirs = pair()
    ours.machine.admitted(theirs.name)
    assert not ours.machine.is_member(theirs.name)
    ours.take(theirs.name, Digest(ours.machine.digest(), learner=True), 0)
    assert not ours.machine.is_member(theirs.name)
    ours.take(theirs.name, Digest(ours.machine.digest(), learner=False), 0)
    assert ours.machine.is_member(theirs.name)
    ours.machine.admitted(theirs.name)
    assert not ours.machine.is_member(theirs.name)


def test_a_peer_below_its_mark_counts_not() -> None:
    ours, theirs = pair()
    once = VersionVector({theirs.origin: 3})
    ours.machine._state(theirs.name).mark = Mark({0: once})
    ours.take(theirs.name, Digest(b"another digest", learner=False), 0)
    assert not ours.machine.is_member(theirs.name)
    ours.take(theirs.name, Vectors([(0, VersionVector({theirs.origin: 2}).pack())], False), 0)
    assert not ours.machine.is_member(theirs.name)
    ours.take(theirs.name, Vectors([(0, once.pack())], False), 0)
    assert ours.machine.is_member(theirs.name)


@pytest.mark.parametrize("enough", [1, 2])
def test_a_truncation_that_no_majority_holds_is_ignored(enough: int) -> None:
    ours, theirs = told_of_five()
    ours.machine._is_majority = lambda peers: len(peers) >= enough
    ours.machine.tick(1)
    assert len(wants(ours)) == 1
    ours.machine.receive(theirs.name, Truncated(0, VersionVector({theirs.origin: 5}).pack()), 1)
    resets = [effect for effect in ours.machine.take_outbox() if isinstance(effect, Reset)]
    assert len(resets) == (enough == 1)
