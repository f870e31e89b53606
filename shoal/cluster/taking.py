"""Decide which partitions to take by snapshot, from which peer, and what to ask next.

    look · truncated · received · staged · doubted · failed · installed · next   →   requests

Laws:
- A partition is taken by snapshot if a peer truncated its log beyond what this replica holds, or if this replica lacks more
  than `operations_min` operations of it, and most of those that a peer holds. Meanwhile its log is not fetched.
- A snapshot comes from one peer, in pieces, which are taken in their order. At most `open_max` are under way, each with
  at most `ahead` pieces that were asked for and not staged.
- A lost piece is asked for again. A peer that sends nothing for `idle_s`, or whose snapshot cannot be used, is left alone
  for a while, each time for twice as long, up to `pause_s_max`, and another peer is asked. If all peers failed several
  times, and the log is still there, it is fetched instead, until most is held. One that nobody can confirm, because a
  client goes on writing, is a failure of them all.
- The pieces are hashed as a whole. A snapshot whose hash differs is not used.
- While this replica rests, nothing is asked for; what was asked for before still arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING

from shoal.cluster.knowledge import Replica
from shoal.cluster.messages import SnapshotPiece, SnapshotRequest
from shoal.cluster.peer_state import SnapshotLimits
from shoal.crdt.dot import NOTHING_SEEN, VersionVector
from shoal.records import NamedTuple

if TYPE_CHECKING:
    from hashlib import _Hash


_NO_ROOM_S = 0.1  # Until a request is made again that a link's queue did not take.
_DOUBLINGS_MAX = 16
# How many times more a peer holds. To take an operation from the log costs all nodes together twice as much as to take it in a
# snapshot, which brings all of them.
_HALF = 2
_NEARLY_EMPTY = 8  # The same of a partition to which this node has written since it started.
_FAILURES_MAX = 3  # Of one peer, before the log is fetched instead.


class SnapshotProgress(NamedTuple):
    """How far this replica is, since it started."""

    due: int  # Partitions that are still to be taken, or under way.
    taken: int  # Partitions that were replaced.
    bytes: int  # That arrived, of these and of others.


@dataclass(slots=True)
class _Transfer:
    """A snapshot on its way here."""

    peer: bytes
    attempt: int
    heard: float  # When it moved last.
    id: bytes = b""
    taken: int = 0  # Pieces that were handed out, in order.
    total: int | None = None  # Pieces of the snapshot, once its last one arrived.
    digest: bytes = b""
    asked: dict[int, float] = field(default_factory=dict)  # Pieces that are on their way, and since when.
    early: dict[int, bytes] = field(default_factory=dict)  # Pieces that arrived before the ones before them.
    hash: _Hash = field(default_factory=sha256)
    is_whole: bool = False  # All pieces were staged; it is being installed.


@dataclass(slots=True)
class _Source:
    """A peer that has a partition, and how often it failed to give it."""

    operations: int  # That it holds, at least.
    base: VersionVector = NOTHING_SEEN  # What it truncated its log by: while that is lacking, nothing else helps.
    failures: int = 0
    pause_until: float = 0.0


class Snapshots:
    """The snapshots that this replica takes. Times are seconds on the caller's clock."""

    def __init__(self, replica: Replica, limits: SnapshotLimits) -> None:
        self._replica = replica
        self._limits = limits
        self._sources: dict[int, dict[bytes, _Source]] = {}  # By partition and peer.
        self._transfers: dict[int, _Transfer] = {}
        self._linked: frozenset[bytes] = frozenset()
        self._last_attempt = 0
        self._taken = 0
        self._bytes = 0
        self._rests_until = 0.0

    # ── which ─────────────────────────────────────────────────────────────────

    def truncated(self, peer: bytes, partition: int, base: VersionVector) -> None:
        """`peer` no longer has the operations up to `base` in its log, and this replica lacks some of them."""
        self._sources.setdefault(partition, {}).setdefault(peer, _Source(0)).base = base

    def look(self, peer: bytes, partitions: Iterable[int], operations_in: Callable[[int], int]) -> None:
        """Take note of the partitions, among these, of which this replica lacks much that `peer` holds: so many operations."""
        for partition in partitions:
            operations, source = operations_in(partition), self._sources.get(partition, {}).get(peer)
            if source is not None:
                # By what it held once, this replica would soon be near, and would begin anew with a peer that failed.
                source.operations = max(source.operations, operations)
            elif self._is_behind(partition, operations):
                self._sources.setdefault(partition, {})[peer] = _Source(operations)

    def takes(self, partition: int) -> bool:
        """Whether the log of a partition need not be fetched, because a snapshot brings it.

        This is asked of many partitions at once, so whether the reason still holds is not looked at here, but in `next`.
        """
        if partition in self._transfers:
            return True
        found = self._sources.get(partition, {})
        return any(peer in self._linked and _is_hopeful(source) for peer, source in found.items())

    def _is_due(self, partition: int) -> bool:
        """Whether a reason for a snapshot still holds."""
        found = self._sources.get(partition)
        if found is None:
            return False
        for peer, source in list(found.items()):
            if self._replica.applied(partition).dominates(source.base):
                source.base = NOTHING_SEEN
                if not self._is_behind(partition, source.operations):
                    del found[peer]
        if not found:
            del self._sources[partition]
        return bool(found)

    def _is_behind(self, partition: int, operations: int) -> bool:
        applied = self._replica.applied(partition)
        held = sum(count for _, count in applied.items())
        if operations - held <= self._limits.operations_min:
            return False
        # A client that goes on writing here would make snapshots useless: they lack what it has written.
        is_written = self._replica.own_origin() in applied
        return held * (_NEARLY_EMPTY if is_written else _HALF) <= operations

    @property
    def progress(self) -> SnapshotProgress:
        """How far this replica is."""
        return SnapshotProgress(len(self._sources.keys() | self._transfers.keys()), self._taken, self._bytes)

    @property
    def is_busy(self) -> bool:
        """Whether a partition is to be taken, or on its way."""
        return bool(self._sources or self._transfers)

    # ── asking ────────────────────────────────────────────────────────────────

    def rest(self, until: float) -> None:
        """Ask for nothing before then."""
        self._rests_until = max(self._rests_until, until)

    def rests_for(self, now: float) -> float:
        """For how many seconds nothing is asked for; 0: it does not rest."""
        return max(0.0, self._rests_until - now)

    def next(self, linked: Collection[bytes], now: float) -> list[tuple[bytes, SnapshotRequest]]:
        """The next question and the peer to ask now; `linked` are the peers that can be asked. Call it again after each event
        and tick.
        """
        self._linked = frozenset(linked)
        rests = self.rests_for(now) > 0
        asked: list[tuple[bytes, SnapshotRequest]] = []
        for partition, transfer in list(self._transfers.items()):
            if not transfer.is_whole and not self._is_due(partition):
                asked.append((transfer.peer, self._done(partition)))  # The operations came by another way.
            elif not transfer.is_whole and now - transfer.heard > self._limits.idle_s:
                self.failed(partition, now)
            elif not transfer.is_whole and transfer.peer in linked and not rests:
                asked += self._next_pieces(partition, transfer, now)
        for partition in list(self._sources):
            if rests or len(self._transfers) >= self._limits.open_max:
                break
            if partition in self._transfers or not self._is_due(partition):
                continue
            peer = self._choose(partition, linked, now)
            if peer is not None:
                self._last_attempt += 1
                transfer = self._transfers[partition] = _Transfer(peer, self._last_attempt, now)
                asked += self._next_pieces(partition, transfer, now)
        return asked

    def _choose(self, partition: int, linked: Collection[bytes], now: float) -> bytes | None:
        """The peer that failed least among those that can be asked; the first one of these that said so."""
        ready = [
            (source.failures, peer)
            for peer, source in self._sources[partition].items()
            if peer in linked and _is_hopeful(source) and now >= source.pause_until
        ]
        return min(ready, key=_failures)[1] if ready else None

    def _next_pieces(self, partition: int, transfer: _Transfer, now: float) -> list[tuple[bytes, SnapshotRequest]]:
        stop = transfer.taken + (self._limits.ahead if transfer.id else 1)
        if transfer.total is not None:
            stop = min(stop, transfer.total)
        asked: list[tuple[bytes, SnapshotRequest]] = []
        for piece in range(transfer.taken, stop):
            since = transfer.asked.get(piece)
            if piece not in transfer.early and (since is None or now - since > self._limits.answer_s):
                transfer.asked[piece] = now
                asked.append((transfer.peer, SnapshotRequest(partition, transfer.attempt, transfer.id, piece)))
        return asked

    def untaken(self, peer: bytes, request: SnapshotRequest, now: float) -> None:
        """The queue of the link to `peer` did not take this request: it is made again soon, not when an answer is overdue."""
        transfer = self._transfers.get(request.partition)
        if transfer is not None and (transfer.peer, transfer.attempt) == (peer, request.attempt):
            transfer.heard = now  # It was not asked, so it is not silent.
            if request.piece in transfer.asked:
                transfer.asked[request.piece] = now + _NO_ROOM_S - self._limits.answer_s

    # ── answers ───────────────────────────────────────────────────────────────

    def received(self, peer: bytes, answer: SnapshotPiece, now: float) -> list[tuple[int, bytes]]:
        """Take an answer. Returns the pieces that are next in order, with their numbers; stage each of them, in this order.

        `digest_holds` says, once the last one is among them, whether all of them are as they were sent.
        """
        transfer = self._transfers.get(answer.partition)
        if transfer is None or transfer.peer != peer or transfer.attempt != answer.attempt or transfer.is_whole:
            return []
        if answer.reason:
            pause_s = min(answer.retry_after_ms / 1000, self._limits.answer_s)
            if answer.id and answer.id == transfer.id and answer.piece in transfer.asked:
                # It keeps the snapshot, and is busy: ask for this piece again after the pause.
                transfer.heard, transfer.asked[answer.piece] = now, now + pause_s - self._limits.answer_s
            elif not answer.id:
                self.failed(answer.partition, now, pause_s=pause_s)
            return []
        if transfer.id and transfer.id != answer.id:
            return []  # Of another snapshot: the peer was asked twice for a new one.
        if answer.piece not in transfer.asked or not answer.id:
            return []  # It came before.
        del transfer.asked[answer.piece]
        transfer.id, transfer.heard = answer.id, now
        transfer.early[answer.piece] = answer.rows
        self._bytes += len(answer.rows)
        if answer.digest:
            transfer.total, transfer.digest = answer.piece + 1, answer.digest
        ready: list[tuple[int, bytes]] = []
        while transfer.taken in transfer.early:
            rows = transfer.early.pop(transfer.taken)
            transfer.hash.update(rows)
            ready.append((transfer.taken, rows))
            transfer.taken += 1
        return ready

    def is_whole(self, partition: int) -> int | None:
        """The number of pieces of a snapshot whose pieces were all handed out; None if some are missing."""
        transfer = self._transfers.get(partition)
        return transfer.total if transfer is not None and transfer.taken == transfer.total else None

    def digest_holds(self, partition: int) -> bool:
        """Whether all pieces together have the hash that the peer named. From then on the snapshot is being installed."""
        transfer = self._transfers[partition]
        transfer.is_whole = True
        return transfer.hash.digest() == transfer.digest

    def is_current(self, partition: int, attempt: int) -> bool:
        """Whether pieces with this number are still wanted."""
        transfer = self._transfers.get(partition)
        return transfer is not None and transfer.attempt == attempt

    def failed(self, partition: int, now: float, *, pause_s: float = 0.0) -> None:
        """The snapshot under way cannot be had or used: leave its peer alone for a while, or for `pause_s` if it is busy."""
        transfer = self._transfers.pop(partition, None)
        if transfer is None:
            return
        source = self._sources.get(partition, {}).get(transfer.peer)
        if source is None:
            return
        if pause_s:
            source.pause_until = now + min(pause_s, self._limits.pause_s_max)  # It is busy, and has not failed.
            return
        wait_s = self._limits.pause_s * 2.0 ** min(source.failures, _DOUBLINGS_MAX)
        source.pause_until = now + min(wait_s, self._limits.pause_s_max)
        source.failures += 1

    def doubted(self, partition: int, others: Iterable[bytes]) -> None:
        """The snapshot under way is not believed: these peers have other rows. They are asked for theirs, too.

        If there are none, the others have moved on since it was made, and would have from any other peer's.
        """
        transfer, found = self._transfers.get(partition), self._sources.get(partition, {})
        source = None if transfer is None else found.get(transfer.peer)
        if transfer is None or source is None:
            return
        others = list(others)
        for peer in others:
            found.setdefault(peer, _Source(source.operations, source.base))
        if not others:
            for peer, other in found.items():
                other.failures += peer != transfer.peer  # Its own is counted when it fails.

    def installed(self, partition: int) -> tuple[bytes, SnapshotRequest] | None:
        """The partition was replaced. Returns what to tell the peer, if it still keeps the snapshot."""
        transfer = self._transfers[partition]
        done = self._done(partition)
        self._sources.pop(partition, None)
        self._taken += 1
        return None if transfer.total == 1 else (transfer.peer, done)  # A snapshot of one piece is not kept.

    def _done(self, partition: int) -> SnapshotRequest:
        """End a transfer; returns what to tell its peer."""
        transfer = self._transfers.pop(partition)
        return SnapshotRequest(partition, transfer.attempt, transfer.id, done=True)

    def admitted(self, peer: bytes) -> None:
        """A link from `peer` begins: what it said on an older one may not hold any more. A snapshot under way goes on."""
        for partition in list(self._sources):
            transfer = self._transfers.get(partition)
            if transfer is None or transfer.peer != peer:
                self._sources[partition].pop(peer, None)
                if not self._sources[partition]:
                    del self._sources[partition]

    def forget(self, peer: bytes) -> None:
        """Forget a peer that is gone for good."""
        for partition, transfer in list(self._transfers.items()):
            if transfer.peer == peer and not transfer.is_whole:
                del self._transfers[partition]
        self.admitted(peer)


def _failures(entry: tuple[int, bytes]) -> int:
    return entry[0]


def _is_hopeful(source: _Source) -> bool:
    return bool(source.base) or source.failures < _FAILURES_MAX
