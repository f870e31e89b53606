"""Changes read back from the log, for a watcher that was away.

Laws:
- Within a partition operations are in HLC order, which is a causal order.
- If the log lacks one of the operations, or they have left it, there is no answer.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import islice

from shoal.cluster import operation
from shoal.cluster.operation import partition_of
from shoal.crdt.dot import Dot, Origin, VersionVector
from shoal.crdt.rows import Stamp
from shoal.errors import InvalidValue
from shoal.node.appliers import mutation
from shoal.node.appliers.mutation import Mutation
from shoal.node.catalog import Catalog
from shoal.node.collection.generations import Generations
from shoal.node.partitions import Partitions
from shoal.node.target import Target
from shoal.node.transaction import Transaction
from shoal.node.watching.feed import LABELS
from shoal.protocol import requests
from shoal.records import NamedTuple
from shoal.storage import keys
from shoal.storage.interface import Storage
from shoal.storage.keys import KINDS, Kind

SCOPE_NAMES_MAX = 4096
"""Objects that are read to find the partitions of a watch; with more objects, all partitions are assumed."""


class Logged(NamedTuple):
    """An operation of the log, decoded."""

    hlc: int
    dot: Dot
    wall_ms: int
    mutations: Sequence[Mutation]


class Changelog:
    """Reads the log for watches."""

    def __init__(self, storage: Storage, partitions: Partitions, generations: Generations, catalog: Catalog) -> None:
        self._storage = storage
        self._partitions = partitions
        self._generations = generations
        self._catalog = catalog
        self._all_loaded = False

    def vectors(self) -> dict[int, VersionVector]:
        """The operations applied here, by partition. The first call loads all partitions."""
        if not self._all_loaded:
            self._partitions.load_all()
            self._all_loaded = True
        return self._partitions.vectors()

    def shown(self, number: int) -> VersionVector:
        """The operations applied in a partition, as a position covers them."""
        return self._partitions.load(number).shown

    def target(self, number: int, seen: VersionVector) -> VersionVector | None:
        """The operations applied in a partition, with those of retired origins that `seen` lacks; None if these are gone."""
        partition = self._partitions.load(number)
        lacking = partition.retired.lacking(seen)
        if lacking is None or any(partition.base[origin] > seen[origin] for origin, _ in lacking):
            return None
        return VersionVector({**partition.vector, **{origin: found.sequence for origin, found in lacking}})

    def scope(self, watch: requests.Watch) -> set[int] | None:
        """The partitions that hold objects of a watch; None if it has more than `SCOPE_NAMES_MAX` objects."""
        found: set[int] = set()
        looked = 0
        for kind in watch.kinds or ([watch.kind] if watch.kind is not None else list(LABELS.values())):
            room = SCOPE_NAMES_MAX - looked
            names = self._catalog.names(watch.space, KINDS[kind], prefix=watch.prefix, after=None, limit=room + 1)
            if len(names) > room:
                return None
            looked += len(names)
            found.update(partition_of(watch.space, name) for name in names)
        return found

    def since(self, number: int, seen: VersionVector, target: VersionVector, *, limit: int) -> list[Logged] | None:
        """Up to `limit` operations of a partition that `target` covers and `seen` does not; None if the log lacks one."""
        base = self._partitions.load(number).base
        if number in self._partitions.closed or any(
            base[origin] >= missing.start for origin, missing in target.missing(seen).items()
        ):
            return None
        runs = [self._run(number, origin, missing, limit) for origin, missing in target.missing(seen).items()]
        try:
            found = list(islice(heapq.merge(*runs, key=lambda logged: (logged.hlc, logged.dot)), limit))
            at = seen
            for logged in found:
                at = at.advance(logged.dot)
        except (InvalidValue, ValueError):
            return None
        return found if len(found) == min(limit, sum(map(len, target.missing(seen).values()))) else None

    def _run(self, number: int, origin: Origin, missing: range, limit: int) -> Iterator[Logged]:
        start, stop = keys.log(number, Dot(origin, missing.start)), keys.log(number, Dot(origin, missing.stop))
        for key, stored in self._storage.scan(start, stop, limit=limit):
            body = operation.decode(operation.LogEntry.unpack(stored).packed)
            yield Logged(body.hlc, keys.split_log(key)[1], body.wall_ms, mutation.decode(body.payload))

    def is_ended(self, change: Mutation) -> bool:
        """Whether a change, other than a deletion, belongs to an ended generation of its object."""
        if mutation.ends(change.change):
            return False
        current = self._generations.current(Transaction(self._storage), target_of(change))
        return change.generation < current.number


def target_of(change: Mutation) -> Target:
    """The object of a mutation."""
    return Target(Kind(change.kind), change.space, change.name)


def change_of(target: Target, stamp: Stamp, change: mutation.Change) -> requests.Change:
    """The push to watchers for a change, the same on every node."""
    what, id = str(type(change).__struct_config__.tag), mutation.id_of(target.name, stamp, change)
    return requests.Change(target.space, LABELS[target.kind], target.name, what, id, stamp.hlc, stamp.wall_ms)
