"""What every disk holds at every moment, checked as it is written and as it is shown.

Laws, each with the number of its invariant:
- A dot names one operation, on every disk and for ever (1).
- A disk holds each origin's operations without a hole, each after all that it
  depends on, and its vectors say just that (2). An operation depends on all that
  was on the disk when it was issued.
- An operation's time is after that of all that it depends on (4).
- What a node sends to others is durable by then, but for an operation of an origin that its own disk names durably: that may
  be on its way while it is synced (`0169`), unless an opening takes over what such operations left, or it retires origins (2).
- What a node remembers that another one held was durable there (2).
- What a node shows, or acknowledges, is durable there (2), but for `memory`.
- What is acknowledged as held by a quorum, or by all, is durable on as many (3).
- Only a node whose disk was replaced is told that its directory was set back (19).
- A change that a watcher is told was made, just so, and is durable at the node that tells it (18).

What was durable once on a disk counts for ever: a node may be asked, lose its disk,
and its answer arrive after that. Only when the faults of a plan end are the disks themselves counted
(`lacking`): of what was acknowledged as held by so many, so many hold it then, less those whose disks were
replaced since it was issued. So whatever minority is lost with them, the others hold it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from shoal.client.watching import Change
from shoal.cluster import operation
from shoal.cluster.operation import Body, LogEntry, Tip, partition_of
from shoal.crdt.dot import DOT_BYTES, HORIZON, NOTHING_SEEN, Dot, Origin, VersionVector
from shoal.crdt.rows import successor
from shoal.errors import StoreCorrupt
from shoal.kinds.journal.state import events
from shoal.kinds.thread.state import dag
from shoal.node import mutation
from shoal.node.incarnation import set_back_by
from shoal.node.retired import RetiredOrigins, Summary
from shoal.node.snapshots import switching
from shoal.storage import keys
from shoal.storage.interface import Storage
from shoal.storage.keys import Kind
from simulation.world.disk import tips_of, tips_on

_Place = tuple[int, Origin]
_ORIGIN, _NODE = keys.meta("origin"), keys.meta("node")
_RECORD_AT = DOT_BYTES + 16  # In a checkpoint's row: behind its dot and times.

Violated = Callable[[str, str], None]
"""Takes an invariant and what broke it."""


class Ledger:
    """`parents` tells of every checkpoint that was ever stored what it descends from, by thread and id."""

    def __init__(self, violated: Violated) -> None:
        self.shelves: dict[str, Shelf] = {}
        self.parents: defaultdict[str, dict[str, list[str]]] = defaultdict(dict)
        self._violated = violated
        self.bodies: dict[tuple[int, Dot], operation.Body] = {}  # Of all operations that were ever written, by partition.
        self._known: dict[tuple[int, Dot], VersionVector] = {}
        self._chains: dict[tuple[int, Dot], bytes] = {}
        self._dots: defaultdict[tuple[int, str], list[Dot]] = defaultdict(list)  # By the request's key.
        self._losses: dict[tuple[int, Dot], dict[str, int]] = {}  # Of each disk, when an operation was issued.
        self._promises: list[_Promise] = []
        self._unrecorded: dict[tuple[int, str], tuple[str, dict[_Place, int]]] = {}

    def shelf(self, name: str, storage: Storage) -> Shelf:
        """The watcher of the disk of `name`, which holds what `storage` does."""
        shelf = self.shelves[name] = Shelf(name, self, self._violated)
        shelf.mounted(storage)
        return shelf

    def wrote(self, name: str, partition: int, dot: Dot, entry: LogEntry) -> tuple[operation.Body, bool]:
        """Take note of an operation on a disk; its body, and whether it was issued just now."""
        is_new = (partition, dot) not in self._chains
        self._check(name, partition, dot, entry.chain)
        body = self.bodies.setdefault((partition, dot), operation.decode(entry.packed))
        if is_new:
            self._known[partition, dot] = self._knowing(partition, dot, body)
        if is_new and body.key is not None:
            self._check_removal(name, partition, dot, body.key)
        if body.key is not None and dot not in (dots := self._dots[partition, body.key]):
            dots.append(dot)
        return body, is_new

    def _check(self, name: str, partition: int, dot: Dot, chain: bytes) -> None:
        known = self._chains.get((partition, dot))
        if known is None:
            self._chains[partition, dot] = chain
            self._losses[partition, dot] = {shelf: each.losses for shelf, each in self.shelves.items()}
            self.shelves[name].origins.add(dot.origin)
        elif known != chain:
            self._violated("1", f"{name} holds another operation as {_dot(partition, dot)} than was written before")
        elif dot.origin not in self.shelves[name].origins and not self._copies(partition, dot):
            self._check_early(name, partition, dot)

    def _check_early(self, name: str, partition: int, dot: Dot) -> None:
        body = self.bodies[partition, dot]
        if not any(dot.origin in shelf.named for shelf in self.shelves.values()):
            self._violated("2", f"{name} was sent {_dot(partition, dot)}, whose origin is not durable anywhere")
        kinds = {Kind(made.kind) for made in mutation.decode(body.payload)}
        if body.retires or kinds & {Kind.BUDGET, Kind.MAP}:
            self._violated("2", f"{name} was sent {_dot(partition, dot)}, which is not durable anywhere and may not come back")

    def remembered(self, name: str, node: bytes, place: _Place, sequence: int) -> None:
        """`name` has written that the node with this id held so much."""
        shelf = next((shelf for shelf in self.shelves.values() if node in shelf.nodes), None)
        if shelf is not None and shelf.durable.get(place, 0) < sequence:
            dot = Dot(place[1], sequence)
            self._violated("2", f"{name} remembers that another node held {_dot(place[0], dot)}, which was not durable there")

    def dots_of(self, partition: int, key: str) -> Sequence[Dot]:
        """The operations that were ever written for a request's key."""
        return self._dots.get((partition, key), ())

    def found_nothing(self, partition: int, key: str, node: str) -> None:
        """`node` has answered a removal with this key: there was nothing to remove."""
        if not self._dots[partition, key]:
            self._unrecorded.setdefault((partition, key), (node, dict(self.shelves[node].held)))

    def _check_removal(self, name: str, partition: int, dot: Dot, key: str) -> None:
        """A node that knows of writes which followed the answer of a removal must know that it was answered."""
        answered_by, held = self._unrecorded.get((partition, key), ("", {}))
        if not answered_by:
            return
        known = self._known[partition, dot]
        if any(known[origin] > held.get((partition, origin), 0) for origin in self.shelves[answered_by].origins):
            self._violated(
                "6",
                f"{name} carries out a removal as {_dot(partition, dot)} which {answered_by} had answered, "
                "and knew of what was written there since",
            )

    def answered(self, node: str, partition: int, shown: VersionVector, *, who: str) -> None:
        """`node` has shown, or acknowledged, all that `shown` covers."""
        shelf = self.shelves[node]
        for origin, sequence in shown.entries():
            if shelf.durable.get((partition, origin), 0) < sequence:
                dot = Dot(origin, sequence)
                self._violated("2", f"{node} answers {who} with {_dot(partition, dot)}, which is not durable there")

    def copied(self, partition: int, key: str, needed: int, *, who: str, by: Dot | None = None) -> None:
        """The request with `key` was acknowledged as durable on `needed` nodes, or that of another, `by` which it is done."""
        dots = self._dots[partition, key] if by is None else [by]
        copies = max((self._copies(partition, dot) for dot in dots), default=needed)
        if copies < needed:
            self._violated("3", f"{who} is told of {needed} copies of the write with key {key}, and {copies} are durable")
        elif dots and needed:
            self._promises.append(_Promise(partition, tuple(dots), needed, f"the write of {who} with key {key}"))

    def lacking(self, disks: Mapping[str, Storage]) -> Iterator[str]:
        """What was acknowledged, and is not on as many of these disks as it was said to be, though they were not replaced."""
        held = {name: vectors_of(storage) for name, storage in disks.items()}
        for promise in self._promises:
            retired = {name: RetiredOrigins(storage, promise.partition) for name, storage in disks.items()}
            left = [self._left(held, retired, promise.partition, dot) for dot in promise.dots]
            if (most := max(left, key=len)) and len(most) >= promise.needed:
                continue
            yield f"{promise.what} was acknowledged by {promise.needed}, and is left on {', '.join(most) or 'none'}"

    def _left(
        self, held: Mapping[str, Mapping[_Place, int]], retired: Mapping[str, RetiredOrigins], partition: int, dot: Dot
    ) -> list[str]:
        """Where an operation is, or was until its disk was replaced, or its origin was retired and forgotten."""
        before = self._losses[partition, dot]

        def is_forgotten(name: str) -> bool:
            hlc = self.bodies[partition, dot].hlc
            return (partition, dot.origin) not in held[name] and hlc <= retired[name].summary.forgotten_hlc

        return [
            name
            for name, shelf in self.shelves.items()
            if held[name].get((partition, dot.origin), 0) >= dot.sequence
            or shelf.losses > before.get(name, 0)
            or is_forgotten(name)
        ]

    def told(self, change: Change, earlier: Sequence[str], *, who: str, node: str) -> None:
        """A watcher was told of an event by `node`, after those of the same journal with these ids."""
        partition, dot = partition_of(change.space, change.name), _dot_of(change.id)
        body = self.bodies.get((partition, dot))
        wrong = ""
        if body is None or not _holds(body, change):
            wrong = "which nobody did"
        elif self.shelves[node].durable.get((partition, dot.origin), 0) < dot.sequence:
            wrong = f"which is not durable at {node}"
        elif late := [id for id in earlier if self._builds_on(partition, _dot_of(id), dot)]:
            wrong = f"and was told before of {late[0][:16]}, which builds on it"
        if wrong:
            self._violated("18", f"{who} is told of {change.what} {change.id[:16]} of {change.name}, {wrong}")

    def known(self, partition: int, dot: Dot) -> VersionVector:
        """All that an operation says, itself or through others, that its node held."""
        return self._known.get((partition, dot), NOTHING_SEEN)

    def _builds_on(self, partition: int, dot: Dot, older: Dot) -> bool:
        """Whether an operation was made by a node that held another one."""
        return self.known(partition, dot).covers(older)

    def _knowing(self, partition: int, dot: Dot, body: Body) -> VersionVector:
        """All that an operation's node held: what its context names, and what these knew of in turn."""
        named = [Dot(*entry) for entry in body.knowing().items()]
        known = NOTHING_SEEN
        for before in [Dot(dot.origin, dot.sequence - 1), *named]:
            known = known.join(self.known(partition, before)).join(VersionVector([before]))
        return known

    def _copies(self, partition: int, dot: Dot) -> int:
        return sum(shelf.durable.get((partition, dot.origin), 0) >= dot.sequence for shelf in self.shelves.values())


class _Promise(NamedTuple):
    """What was acknowledged as durable on `needed` nodes: that one of these operations is."""

    partition: int
    dots: tuple[Dot, ...]
    needed: int
    what: str


class Shelf:
    """One disk. `held` is what its vectors must say; `durable` the most that was ever durable; `origins` wrote here first.

    `named` are those of its openings' origins that are durable there; `nodes` the ids that it had.

    `losses` counts how often it was replaced.
    """

    def __init__(self, name: str, ledger: Ledger, violated: Violated) -> None:
        self.held: dict[_Place, int] = {}
        self.durable: dict[_Place, int] = {}
        self.origins: set[Origin] = set()
        self.named: set[Origin] = set()
        self.nodes: set[bytes] = set()
        self.losses = 0
        self._opening: Origin | None = None
        self._replacing: dict[int, _Snapshot] = {}  # By partition: what replaces it.
        self._times: dict[int, int] = {}  # By partition: the greatest of the operations that are there.
        self._name = name
        self._ledger = ledger
        self._violated = violated

    def mounted(self, storage: Storage, /) -> None:
        self.held = vectors_of(storage)
        self._opening = None
        self.nodes.update(found for found in (storage.get(_NODE),) if found is not None)
        self._times = {}
        self._replacing = {number: _Snapshot() for number in switching.marked(storage)}
        for key, tip in storage.scan(keys.VECTOR, successor(keys.VECTOR)):
            self._time(_place(key)[0], Tip.unpack(tip).hlc)
        self.synced()

    def replaced(self) -> None:
        self.losses += 1

    def wrote(self, rows: Mapping[bytes, bytes | None], ranges: Sequence[tuple[bytes, bytes]], /) -> None:
        told_by = set_back_by(rows)
        if told_by and not self.losses:
            self._violated("19", f"{told_by} tells {self._name} that it was set back, and its disk was never replaced")
        for number in switching.replaced_by(rows):
            self._replacing.setdefault(number, _Snapshot())
        for start, _ in ranges:
            if start[:1] == keys.VECTOR:
                self._replacing[int.from_bytes(start[1:3], "big")] = _Snapshot()
        vectors: dict[_Place, int] = {}
        for key, value in rows.items():
            if value is None:
                continue
            table = key[:1]
            if key == _ORIGIN:
                self._opening = Origin(value)
            elif key == _NODE:
                self.nodes.add(value)
            elif (noted := keys.split_entry(key)) is not None:
                self._ledger.remembered(self._name, noted[0], (noted[1], noted[2]), int.from_bytes(value, "big"))
            if table == keys.LOG:
                self._take(*keys.split_log(key), LogEntry.unpack(value))
            elif table in (keys.VECTOR, keys.RETIRED) and (replacing := self._replacing.get(_place(key)[0])) is not None:
                replacing.take(key, value)
            elif table == keys.VECTOR:
                vectors[_place(key)] = Tip.unpack(value).sequence
            elif table == keys.OBJECT and key[3] == Kind.THREAD:
                self._take_thread(key, value)
        for place, sequence in vectors.items():
            if self.held.get(place, 0) != sequence:
                self._broken(place, f"the vector says {sequence}, and the log holds {self.held.get(place, 0)}")
        for number in [number for number in self._replacing if rows.get(switching.marker_of(number), b"") is None]:
            self._replaced(number)

    def _replaced(self, number: int) -> None:
        """The switch of a partition to a peer's snapshot is finished."""
        brought = self._replacing.pop(number)
        for place, sequence in list(self.held.items()):
            hlc = self._ledger.bodies[number, Dot(place[1], sequence)].hlc if place[0] == number else 0
            if place[0] == number and not brought.holds(place, sequence, hlc):
                self._broken(place, f"it was replaced by a snapshot that has {brought.vector.get(place, 0)} of {sequence}")
        self.held.update(brought.vector)

    def synced(self) -> None:
        if self._opening is not None:
            self.named.add(self._opening)
        for place, sequence in self.held.items():
            if sequence > self.durable.get(place, 0):
                self.durable[place] = sequence

    def _take(self, partition: int, dot: Dot, entry: LogEntry) -> None:
        place = partition, dot.origin
        body, is_new = self._ledger.wrote(self._name, partition, dot, entry)
        if partition in self._replacing:
            self._time(partition, body.hlc)
            return
        if self.held.get(place, 0) + 1 != dot.sequence:
            self._broken(place, f"operation {dot.sequence} is written after {self.held.get(place, 0)}")
        for origin, sequence in body.context:
            if self.held.get((partition, Origin(origin)), 0) < sequence:
                self._broken(place, f"operation {dot.sequence} depends on {sequence} of {origin.hex()[:8]}, which is not there")
        if is_new:
            known = self._ledger.known(partition, dot)
            unknown = [origin for (number, origin), n in self.held.items() if number == partition and known[origin] < n]
            for origin in unknown:
                self._broken(place, f"operation {dot.sequence} does not know of {origin.hex()[:8]}, which was there before")
        if is_new and body.hlc <= self._times.get(partition, 0):
            self._violated("4", f"{self._name} issues {_dot(partition, dot)} with a time that is not after what it has applied")
        self._time(partition, body.hlc)
        self.held[place] = max(dot.sequence, self.held.get(place, 0))

    def _time(self, partition: int, hlc: int) -> None:
        self._times[partition] = max(hlc, self._times.get(partition, 0))

    def _take_thread(self, key: bytes, value: bytes) -> None:
        _, _, _, name, row = keys.split_object(key)
        if row.startswith(dag.CHECKPOINT):
            try:
                record = dag.decode_record(value[_RECORD_AT:])
            except StoreCorrupt:
                return  # A snapshot copies what a peer's disk has altered; that it is noticed is judged elsewhere (20).
            self._ledger.parents[name][row[1:].hex()] = [parent.hex() for parent in record.parents]

    def _broken(self, place: _Place, what: str) -> None:
        self._violated("2", f"{self._name}, partition {place[0]}, origin {place[1].hex()[:8]}: {what}")


class _Snapshot:
    """What is written of a snapshot that replaces a partition."""

    def __init__(self) -> None:
        self.vector: dict[_Place, int] = {}
        self._forgotten_hlc = 0  # See `shoal.node.retired.Summary`.

    def take(self, key: bytes, value: bytes) -> None:
        """Take a row of a vector, or of retired origins."""
        if key[:1] == keys.RETIRED and key[3:] == HORIZON:
            self._forgotten_hlc = Summary.unpack(value).forgotten_hlc
        self.vector.update((place, tip.sequence) for place, tip in tips_of([(key, value)]).items())

    def holds(self, place: _Place, sequence: int, hlc: int) -> bool:
        """Whether it holds an operation issued at this time, or held it until its origin was retired and forgotten."""
        return self.vector.get(place, 0) >= sequence or (place not in self.vector and hlc <= self._forgotten_hlc)


def _holds(body: operation.Body, change: Change) -> bool:
    """Whether it is this operation that a watcher was told of."""
    if (body.hlc, body.wall_ms) != (change.hlc, change.wall_ms):
        return False
    told = change.space, change.kind, change.name, change.what
    return any(
        told == (made.space, Kind(made.kind).label, made.name, _tag(made.change)) for made in mutation.decode(body.payload)
    )


def _dot_of(id: str) -> Dot:
    """Of the operation that made an event."""
    return events.dot_of(bytes.fromhex(id))


def _tag(change: mutation.Change) -> str:
    return str(change.__struct_config__.tag)


def _place(vector_key: bytes) -> _Place:
    return int.from_bytes(vector_key[1:3], "big"), Origin(vector_key[3:])


def vectors_of(storage: Storage) -> dict[_Place, int]:
    """What a disk holds, once the node has started on it: switches to snapshots that were begun are finished then."""
    found = {place: tip.sequence for place, tip in tips_on(storage).items()}
    for number, pieces in switching.marked(storage).items():
        for rows in switching.all_staged(storage, number, pieces):
            found.update((place, tip.sequence) for place, tip in tips_of(rows).items())
    return found


def _dot(partition: int, dot: Dot) -> str:
    return f"operation {dot.sequence} of {dot.origin.hex()[:8]} in partition {partition}"
