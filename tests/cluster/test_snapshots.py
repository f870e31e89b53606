"""Which partitions are taken by snapshot, from which peer, and what is asked next."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

import pytest

from shoal.cluster.messages import SnapshotPiece, SnapshotRequest
from shoal.cluster.peer_state import SnapshotLimits
from shoal.cluster.taking import Snapshots
from shoal.crdt.dot import NOTHING_SEEN, Origin, VersionVector

A, OWN = Origin(b"a" * 16), Origin(b"o" * 16)
ONE, OTHER = b"1" * 16, b"2" * 16
ID, ANOTHER_ID = b"i" * 16, b"j" * 16
LIMITS = SnapshotLimits(operations_min=10, open_max=2, ahead=2, answer_s=1.0, idle_s=5.0, pause_s=1.0, pause_s_max=4.0)


class Holding:
    """A replica that holds these vectors."""

    def __init__(self, held: dict[int, VersionVector] | None = None) -> None:
        self.held = held or {}
        self.own: Origin | None = None

    def applied(self, partition: int, /) -> VersionVector:
        return self.held.get(partition, NOTHING_SEEN)

    durable = endings = applied

    def partitions(self) -> Iterable[int]:
        return self.held

    def retirements(self, partition: int, known: VersionVector, /) -> tuple[VersionVector, VersionVector]:
        return NOTHING_SEEN, NOTHING_SEEN

    def own_origin(self) -> Origin | None:
        return self.own


class Side:
    """The snapshots of a replica, and what its peers are known to hold."""

    def __init__(self, held: dict[int, VersionVector] | None = None) -> None:
        self.replica = Holding(held)
        self.snapshots = Snapshots(self.replica, LIMITS)

    def look(self, peer: bytes, held: dict[int, int]) -> None:
        self.snapshots.look(peer, held, held.__getitem__)

    def asked(self, now: float = 0.0, *, linked: Iterable[bytes] = (ONE, OTHER)) -> list[tuple[bytes, int, int]]:
        """The peers that are asked, for which pieces of which partitions."""
        return [(peer, request.partition, request.piece) for peer, request in self.snapshots.next(list(linked), now)]

    def begun(self, partition: int = 1, *, now: float = 0.0) -> SnapshotRequest:
        """The first request for a partition."""
        [(_, request)] = self.snapshots.next([ONE], now)
        assert request.partition == partition
        return request

    def bring(self, request: SnapshotRequest, pieces: list[bytes], nth: int, *, now: float = 0.0, id: bytes = ID) -> list[int]:
        """Answer with a piece; returns the numbers of those that are next in order."""
        digest = sha256(b"".join(pieces)).digest() if nth == len(pieces) - 1 else b""
        answer = SnapshotPiece(request.partition, request.attempt, id, nth, pieces[nth], digest)
        return [number for number, _ in self.snapshots.received(ONE, answer, now)]

    def refuse(self, request: SnapshotRequest, *, now: float = 0.0, retry_after_ms: int = 0) -> None:
        answer = SnapshotPiece(request.partition, request.attempt, b"", 0, reason="no", retry_after_ms=retry_after_ms)
        assert self.snapshots.received(ONE, answer, now) == []


# ── which partitions ──────────────────────────────────────────────────────────


def test_an_empty_partition_is_taken_by_snapshot_if_a_peer_holds_enough_of_it() -> None:
    side = Side()
    side.look(ONE, {1: 11, 2: 10})
    assert side.asked() == [(ONE, 1, 0)]
    assert [side.snapshots.takes(partition) for partition in (1, 2)] == [True, False]


def test_a_request_that_found_no_room_is_made_again_soon() -> None:
    side = Side()
    side.look(ONE, {1: 11})
    for at in (0.0, 0.2, 0.4, 5.2):  # However often: the peer has not failed to answer.
        [(peer, request)] = side.snapshots.next([ONE], at)
        side.snapshots.untaken(peer, request, at)
        assert side.asked(at + 0.05) == []
    assert side.asked(5.4) == [(ONE, 1, 0)]
    assert side.asked(5.5) == []  # It was sent this time, and is waited for.


@pytest.mark.answers("whole-log-is-replayed-though-a-snapshot-is-shorter")
def test_a_partition_of_which_more_than_half_is_held_is_fetched_from_the_log() -> None:
    side = Side({1: VersionVector({A: 501}), 2: VersionVector({A: 500})})
    side.look(ONE, {1: 1000, 2: 1000})
    assert side.asked() == [(ONE, 2, 0)]


def test_a_partition_that_lacks_few_operations_is_fetched_from_the_log() -> None:
    side = Side({1: VersionVector({A: 5}), 2: VersionVector({A: 5})})
    side.look(ONE, {1: 15, 2: 16})
    assert side.asked() == [(ONE, 2, 0)]


def test_own_operations_of_a_new_node_do_not_make_it_replay_the_log() -> None:
    side = Side({1: VersionVector({OWN: 2})})
    side.look(ONE, {1: 1000})
    assert side.asked() == [(ONE, 1, 0)]


@pytest.mark.answers("whole-log-is-replayed-though-a-snapshot-is-shorter")
def test_a_partition_to_which_this_node_writes_is_fetched_from_the_log_unless_it_is_nearly_empty() -> None:
    side = Side({1: VersionVector({A: 100, OWN: 25}), 2: VersionVector({A: 101, OWN: 25})})
    side.replica.own = OWN
    side.look(ONE, {1: 1000, 2: 1000})
    assert side.asked() == [(ONE, 1, 0)]


def test_a_truncated_log_is_a_reason_however_much_is_held() -> None:
    side = Side({1: VersionVector({A: 900})})
    side.snapshots.truncated(ONE, 1, VersionVector({A: 950}))
    assert side.asked() == [(ONE, 1, 0)]
    assert side.snapshots.takes(1)


def test_of_two_peers_that_truncated_their_logs_one_is_asked() -> None:
    side = Side()
    side.snapshots.truncated(ONE, 1, VersionVector({A: 950}))
    side.snapshots.truncated(OTHER, 1, VersionVector({A: 950}))
    assert side.asked() == [(ONE, 1, 0)]


def test_a_reason_that_is_gone_is_forgotten() -> None:
    side = Side()
    side.look(ONE, {1: 11})
    side.replica.held[1] = VersionVector({A: 11})
    assert side.asked() == []
    assert not side.snapshots.takes(1)
    assert side.snapshots.progress.due == 0


def test_a_truncated_log_is_no_reason_once_its_operations_came_by_another_way() -> None:
    side = Side({1: VersionVector({A: 900})})
    side.snapshots.truncated(ONE, 1, VersionVector({A: 950}))
    side.replica.held[1] = VersionVector({A: 950})
    assert side.asked() == []
    assert not side.snapshots.is_busy


def test_a_snapshot_under_way_is_ended_once_its_operations_came_by_another_way() -> None:
    side, pieces = Side(), [b"a", b"b"]
    side.look(ONE, {1: 11})
    request = side.begun()
    side.bring(request, pieces, 0)
    side.replica.held[1] = VersionVector({A: 11})
    assert side.snapshots.next([ONE], 0.0) == [(ONE, SnapshotRequest(1, request.attempt, ID, done=True))]
    assert not side.snapshots.is_busy


def test_a_peer_that_is_not_linked_is_not_asked_and_holds_nothing_up() -> None:
    side = Side()
    side.snapshots.truncated(ONE, 1, VersionVector({A: 950}))
    assert side.asked(linked=[OTHER]) == []
    assert not side.snapshots.takes(1)


def test_so_many_snapshots_are_under_way_at_once() -> None:
    side = Side()
    side.look(ONE, {1: 11, 2: 11, 3: 11})
    assert side.asked() == [(ONE, 1, 0), (ONE, 2, 0)]
    assert side.asked() == []


# ── pieces ────────────────────────────────────────────────────────────────────


def test_so_many_pieces_are_asked_for_ahead_once_the_first_has_named_the_snapshot() -> None:
    side = Side()
    side.look(ONE, {1: 11})
    request = side.begun()
    assert side.bring(request, [b"a", b"b", b"c", b"d"], 0) == [0]
    assert side.asked() == [(ONE, 1, 1), (ONE, 1, 2)]
    assert side.bring(request, [b"a", b"b", b"c", b"d"], 1) == [1]
    assert side.asked() == [(ONE, 1, 3)]


def test_pieces_are_handed_out_in_their_order() -> None:
    side, pieces = Side(), [b"a", b"b", b"c"]
    side.look(ONE, {1: 11})
    request = side.begun()
    side.bring(request, pieces, 0)
    side.asked()
    assert side.bring(request, pieces, 2) == []
    assert side.snapshots.is_whole(1) is None
    assert side.bring(request, pieces, 1) == [1, 2]
    assert side.snapshots.is_whole(1) == 3
    assert side.snapshots.digest_holds(1)


def test_a_lost_piece_is_asked_for_again() -> None:
    side = Side()
    side.look(ONE, {1: 11})
    request = side.begun()
    side.bring(request, [b"a", b"b", b"c"], 0)
    assert side.asked() == [(ONE, 1, 1), (ONE, 1, 2)]
    assert side.asked(1.0) == []
    assert side.asked(1.1) == [(ONE, 1, 1), (ONE, 1, 2)]


def test_a_piece_that_comes_twice_counts_once() -> None:
    side, pieces = Side(), [b"a", b"b"]
    side.look(ONE, {1: 11})
    request = side.begun()
    assert side.bring(request, pieces, 0) == [0]
    assert side.bring(request, pieces, 0) == []
    side.asked()
    assert side.bring(request, pieces, 1) == [1]
    assert side.snapshots.digest_holds(1)


def test_a_piece_of_another_snapshot_is_not_taken() -> None:
    side, pieces = Side(), [b"a", b"b"]
    side.look(ONE, {1: 11})
    request = side.begun()
    side.bring(request, pieces, 0)
    side.asked()
    assert side.bring(request, pieces, 1, id=ANOTHER_ID) == []
    assert side.bring(SnapshotRequest(1, request.attempt + 1), pieces, 1) == []
    assert side.bring(request, pieces, 1) == [1]


def test_another_peer_cannot_answer_for_the_one_that_was_asked() -> None:
    side = Side()
    side.look(ONE, {1: 11})
    request = side.begun()
    assert side.snapshots.received(OTHER, SnapshotPiece(1, request.attempt, ID, 0, b"a"), 0.0) == []


def test_pieces_with_another_hash_than_the_named_one_are_not_whole() -> None:
    side = Side()
    side.look(ONE, {1: 11})
    request = side.begun()
    assert side.snapshots.received(ONE, SnapshotPiece(1, request.attempt, ID, 0, b"a", b"no such hash"), 0.0)
    assert side.snapshots.is_whole(1) == 1
    assert not side.snapshots.digest_holds(1)


def test_the_peer_is_told_when_a_snapshot_that_it_keeps_is_installed() -> None:
    side, pieces = Side(), [b"a", b"b"]
    side.look(ONE, {1: 11})
    request = side.begun()
    side.bring(request, pieces, 0)
    side.asked()
    side.bring(request, pieces, 1)
    side.snapshots.digest_holds(1)
    assert side.snapshots.installed(1) == (ONE, SnapshotRequest(1, request.attempt, ID, done=True))
    assert not side.snapshots.takes(1)
    assert side.snapshots.progress == (0, 1, 2)


# ── failures ──────────────────────────────────────────────────────────────────


def test_a_peer_that_sends_nothing_is_left_alone_and_another_one_is_asked() -> None:
    side = Side()
    side.look(ONE, {1: 11})
    side.look(OTHER, {1: 11})
    assert side.asked() == [(ONE, 1, 0)]
    assert side.asked(5.1) == [(OTHER, 1, 0)]


def test_a_busy_peer_is_asked_again_after_the_time_that_it_named() -> None:
    side = Side()
    side.look(ONE, {1: 11})
    side.refuse(side.begun(), retry_after_ms=500)
    assert side.snapshots.takes(1)
    assert side.asked(0.4) == []
    assert side.asked(0.6) == [(ONE, 1, 0)]


def test_a_piece_that_a_busy_peer_keeps_is_asked_for_again_and_the_others_stay() -> None:
    side, pieces = Side(), [b"a", b"b"]
    side.look(ONE, {1: 11})
    request = side.begun()
    side.bring(request, pieces, 0)
    side.asked()
    busy = SnapshotPiece(1, request.attempt, ID, 1, reason="busy", retry_after_ms=200)
    assert side.snapshots.received(ONE, busy, 0.0) == []
    assert side.asked(0.1) == []
    assert side.asked(0.3) == [(ONE, 1, 1)]
    assert side.bring(request, pieces, 1) == [1]


def test_a_snapshot_that_the_peer_does_not_keep_any_more_is_begun_anew() -> None:
    side, pieces = Side(), [b"a", b"b"]
    side.look(ONE, {1: 11})
    request = side.begun()
    side.bring(request, pieces, 0)
    side.asked()
    side.snapshots.received(ONE, SnapshotPiece(1, request.attempt, b"", 1, reason="gone", retry_after_ms=1), 0.0)
    [(_, again)] = side.snapshots.next([ONE], 0.1)
    assert (again.id, again.piece) == (b"", 0)
    assert again.attempt != request.attempt


def test_a_peer_that_fails_again_is_left_alone_for_twice_as_long() -> None:
    side = Side()
    side.snapshots.truncated(ONE, 1, VersionVector({A: 950}))
    side.refuse(side.begun())
    assert side.asked(0.9) == []
    side.refuse(side.begun(now=1.1), now=1.1)
    assert side.asked(3.0) == []
    assert side.asked(3.2) == [(ONE, 1, 0)]


def test_after_some_failures_the_log_is_fetched_unless_it_was_truncated() -> None:
    side = Side()
    side.look(ONE, {1: 11})
    side.snapshots.truncated(ONE, 2, VersionVector({A: 950}))
    for now in (0.0, 10.0, 20.0):
        for _, request in side.snapshots.next([ONE], now):
            side.refuse(request, now=now)
    assert not side.snapshots.takes(1)
    assert side.asked(30.0) == [(ONE, 2, 0)]


@pytest.mark.parametrize(("others", "takes"), [((), False), ((OTHER,), True)])
def test_a_snapshot_that_nobody_confirms_is_a_failure_of_all_peers(others: tuple[bytes, ...], takes: bool) -> None:
    side = Side()
    side.look(ONE, {1: 11})
    side.look(OTHER, {1: 11})
    for now in (0.0, 10.0, 20.0):
        assert len(side.snapshots.next([ONE, OTHER], now)) == 1
        side.snapshots.doubted(1, others)
        side.snapshots.failed(1, now)
    assert side.snapshots.takes(1) is takes


def test_a_log_is_fetched_until_most_of_what_is_held_by_then_is_here() -> None:
    side = Side()
    side.look(ONE, {1: 100})
    for now in (0.0, 10.0, 20.0):
        side.refuse(side.begun(now=now), now=now)
    for held, takes in ((95, False), (4000, False), (6000, False)):
        side.look(ONE, {1: 10_000})
        side.replica.held[1] = VersionVector({A: held})
        assert side.asked(30.0) == []
        side.look(ONE, {1: 10_000})
        assert side.snapshots.takes(1) is takes
    side.look(ONE, {1: 100_000})
    assert side.snapshots.takes(1)


def test_a_snapshot_goes_on_after_a_new_link() -> None:
    side, pieces = Side(), [b"a", b"b"]
    side.look(ONE, {1: 11})
    request = side.begun()
    side.bring(request, pieces, 0)
    side.snapshots.admitted(ONE)
    assert side.asked() == [(ONE, 1, 1), (ONE, 1, 2)]
    assert side.bring(request, pieces, 1) == [1]


def test_words_on_older_links_do_not_count() -> None:
    side = Side()
    side.look(ONE, {1: 11})
    side.snapshots.admitted(ONE)
    assert side.asked() == []


def test_a_snapshot_of_a_peer_that_is_gone_for_good_is_given_up() -> None:
    side = Side()
    side.look(ONE, {1: 11})
    side.look(OTHER, {1: 11})
    side.asked()
    side.snapshots.forget(ONE)
    assert side.asked() == [(OTHER, 1, 0)]


@pytest.mark.answers("snapshots-hold-up-clients")
def test_nothing_is_asked_for_in_a_rest_and_what_arrives_is_taken() -> None:
    side = Side()
    side.look(ONE, {1: 50})
    first = side.begun(1)
    side.look(ONE, {2: 50})
    side.snapshots.rest(until=3.0)
    side.snapshots.rest(until=2.0)
    piece = SnapshotPiece(1, first.attempt, ID, 0, b"rows")
    assert side.snapshots.received(ONE, piece, 1.0) == [(0, b"rows")]
    assert side.asked(2.9) == []
    assert sorted(side.asked(3.0)) == [(ONE, 1, 1), (ONE, 1, 2), (ONE, 2, 0)]


def test_a_peer_that_sends_nothing_is_given_up_in_a_rest_too() -> None:
    side = Side()
    side.look(ONE, {1: 50})
    side.begun(1)
    side.snapshots.rest(until=60.0)
    assert side.asked(LIMITS.idle_s + 0.1) == []
    assert side.snapshots.progress.due == 1
    assert side.asked(60.0) == [(ONE, 1, 0)], "its first piece, anew"
