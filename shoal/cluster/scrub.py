"""Compare rows among peers whose vectors are equal: a hash tree that is made as it is walked.

Laws:
- Equal operations make equal rows: if two peers hold the same operations of a partition and their
  rows differ, one of them is wrong. The comparison finds that, and names the object.
- A node walks through its rows a piece at a time, no faster than its budget, and sends
  each peer a hash of the piece. Only if that differs from the peer's own do they
  exchange a hash for each object in it.
- A hash names the vector at which it was made. A hash made at another vector is ignored.
- Some rows may differ without a fault: the rest of an erased object, which depends on when a node sweeps, and a
  thread that lacks the base of a save until a peer has supplied it. Such an object has `UNSURE` in the place of
  its hash, and is not compared.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b

from shoal.cluster.messages import Objects, Rows
from shoal.crdt.dot import VersionVector
from shoal.records import NamedTuple

DIGEST_BYTES = 16
UNSURE = b""
_PASSES_KEPT = 3  # A difference that was not found again in so many passes is forgotten.


class Piece(NamedTuple):
    """Some of a partition's rows as they are at one vector. Objects are named by the prefix of their rows' keys."""

    partition: int
    vector: bytes  # Its hash.
    start: bytes
    stop: bytes
    size: int  # Bytes.
    rows: list[tuple[bytes, bytes, bytes]]  # The object, key and value of each.
    unsure: frozenset[bytes]  # Objects of the partition that cannot be compared.

    def told(self) -> Rows:
        """The message that starts a comparison of this piece."""
        return Rows(self.partition, self.vector, self.start, self.stop, self.digest())

    def told_of_objects(self, *, answer: bool, proved: Iterable[bytes] = ()) -> Objects:
        """The message with a hash of each object in the piece; `answer` asks for the peer's own.

        `proved` are objects whose rows are what this node's whole log makes.
        """
        objects = self.objects()
        shown = [name for name in proved if name in objects]
        return Objects(self.partition, self.vector, self.start, self.stop, list(objects.items()), answer, shown)

    def digest(self) -> bytes:
        """A hash of all its rows."""
        return _digest(self.rows)

    def objects(self) -> dict[bytes, bytes]:
        """A hash of each object's rows in this piece, `UNSURE` for those that cannot be compared."""
        by_object: dict[bytes, list[tuple[bytes, bytes, bytes]]] = {}
        for row in self.rows:
            by_object.setdefault(row[0], []).append(row)
        hashed = {name: _digest(rows) for name, rows in by_object.items()}
        return hashed | dict.fromkeys(self.unsure, UNSURE)

    def rows_of(self, name: bytes) -> list[tuple[bytes, bytes]]:
        """Keys and values of an object's rows in this piece."""
        return [(key, value) for of, key, value in self.rows if of == name]

    def holds_all_of(self, name: bytes) -> bool:
        """Whether no row of this object can be outside."""
        return self.start <= name and not self.stop.startswith(name)


def vector_digest(vector: VersionVector) -> bytes:
    """A hash that is equal for equal vectors."""
    return blake2b(vector.pack(), digest_size=DIGEST_BYTES).digest()


def digest_of(name: bytes, rows: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The hash that `Piece.objects` has for an object with these rows."""
    return _digest((name, key, value) for key, value in rows)


def _digest(rows: Iterable[tuple[bytes, bytes, bytes]]) -> bytes:
    parts: list[bytes] = []
    for _, key, value in rows:
        parts += (len(key).to_bytes(4, "big"), len(value).to_bytes(4, "big"), key, value)
    return blake2b(b"".join(parts), digest_size=DIGEST_BYTES).digest()


class Walk:
    """Which piece is next, and when it may be read: one pass through all partitions each interval."""

    def __init__(self, *, interval_s: float, bytes_per_s: float) -> None:
        self._interval_s = interval_s
        self._bytes_per_s = bytes_per_s
        self._left: deque[int] = deque()
        self._after = b""
        self._free_at = 0.0
        self._next_pass: float | None = None
        self._began = 0.0
        self.pass_s = interval_s
        """How long the last pass took, or the interval if that is longer."""
        self.passed: float | None = None
        """When the last pass ended; None: none has."""

    def due(self, now: float, partitions: Callable[[], Iterable[int]]) -> tuple[int, bytes] | None:
        """The partition of the next piece and the key at which it begins, empty for the first; None if it is not time yet."""
        if self._next_pass is None:
            self._next_pass = now + self._interval_s  # The first pass waits one interval.
        if now < self._free_at:
            return None
        if not self._left:
            if now < self._next_pass:
                return None
            self._left.extend(sorted(partitions()))
            self._began, self._next_pass, self._after = now, now + self._interval_s, b""
            if not self._left:
                return None
        return self._left[0], self._after

    def done(self, size: int, stop: bytes | None, now: float) -> None:
        """A piece of `size` bytes was read. The next begins at `stop`; if that is None, in the next partition."""
        self._free_at = max(now, self._free_at) + size / self._bytes_per_s
        self._after = stop or b""
        if stop is None:
            self._left.popleft()
            if not self._left:
                self.pass_s = max(self._interval_s, now - self._began)
                self.passed = now


class Difference(NamedTuple):
    """An object whose rows differ from a peer's."""

    peer: bytes
    object: bytes


class Differences:
    """The objects whose rows differ from a peer's, until they are equal again; at most `most`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._seen: dict[Difference, float] = {}

    def __len__(self) -> int:
        return len(self._seen)

    def all(self) -> list[Difference]:
        """All differences, in order."""
        return sorted(self._seen)

    def within(self, piece: Piece) -> bool:
        """Whether one of the objects may have rows in this piece."""
        return any(piece.start <= found.object < piece.stop or piece.start.startswith(found.object) for found in self._seen)

    def compare(self, peer: bytes, ours: Piece, theirs: Mapping[bytes, bytes], now: float) -> list[bytes]:
        """Record a peer's hashes of the objects of a piece. Returns the objects that differ."""
        own = ours.objects()
        differing = []
        for name in sorted(own.keys() | theirs.keys()):
            mine, its = own.get(name), theirs.get(name)
            if UNSURE in (mine, its):
                continue
            if mine == its:
                self._equal(peer, ours, name)
                continue
            differing.append(name)
            if Difference(peer, name) in self._seen or len(self._seen) < self._most:
                self._seen[Difference(peer, name)] = now
        return differing

    def equal(self, peer: bytes, ours: Piece) -> None:
        """The peer's rows of this piece are the same."""
        for found in self.all():
            if found.peer == peer:
                self._equal(peer, ours, found.object)

    def _equal(self, peer: bytes, ours: Piece, name: bytes) -> None:
        if ours.holds_all_of(name):
            self._seen.pop(Difference(peer, name), None)

    def forget(self, name: bytes) -> None:
        """The object's rows were replaced here."""
        for found in [found for found in self._seen if found.object == name]:
            del self._seen[found]

    def leave(self, peer: bytes) -> None:
        """The peer is gone for good: nothing can be compared with it any more."""
        for found in [found for found in self._seen if found.peer == peer]:
            del self._seen[found]

    def expire(self, now: float, pass_s: float, linked: Iterable[bytes]) -> None:
        """Drop the differences that were not found again. Those with peers that are not linked stay."""
        present = frozenset(linked)
        for found, seen in list(self._seen.items()):
            if found.peer not in present:
                self._seen[found] = now
            elif now - seen > _PASSES_KEPT * pass_s:
                del self._seen[found]
