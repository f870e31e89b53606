"""Data types over storage: every write becomes one operation, every read is covered by an fsync.

Laws:
- One write batch holds the log entry, the objects' rows and the partition's
  vector; they are on disk together or not at all.
- An opening takes a new random origin at its first write, recorded in the same
  batch that uses it first, so no restart, restore or clone reuses a dot.
- Nothing in memory moves before the write is made: a request that is refused, or
  that storage refuses, leaves no trace.
- A read waits for the group commit that covers the last write to its partition.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from typing import NamedTuple

import msgspec

from shoal.cluster import operation
from shoal.cluster.messages import Shipment
from shoal.config import Config
from shoal.crdt import deletion, document, ledger
from shoal.crdt.clock import HybridClock
from shoal.crdt.dot import Dot, VersionVector
from shoal.crdt.rows import Stamp
from shoal.errors import (
    InvalidValue,
    KeyExpired,
    KeyReused,
    ShoalError,
    SpansPartitions,
    StoreCorrupt,
    TooLarge,
    Unsupported,
)
from shoal.names import check_name
from shoal.node import attached, listing, mutation, retention, steps
from shoal.node.attached import Attached
from shoal.node.branches import Branches
from shoal.node.budgets import Budgets
from shoal.node.catalog import Catalog
from shoal.node.changelog import Changelog
from shoal.node.checkpoints import Checkpoints
from shoal.node.consumers import Consumers
from shoal.node.decision import Made
from shoal.node.declaring import Declaring
from shoal.node.documents import Documents, Place
from shoal.node.environment import Environment
from shoal.node.erasing import Deletions, Eraser
from shoal.node.facet import Checks, Facet, Readers, Site, View, Writers
from shoal.node.feed import LABELS, Feed, Staged
from shoal.node.garbage import Collector
from shoal.node.generations import Generations
from shoal.node.incoming import Incoming
from shoal.node.indexes import Indexes
from shoal.node.indexing import Indexer
from shoal.node.items import Items
from shoal.node.journals import Journals
from shoal.node.labels import Labels
from shoal.node.lifetimes import Lifetimes
from shoal.node.losses import Losses
from shoal.node.maps import Maps
from shoal.node.mutation import Mutation
from shoal.node.opening import Opening
from shoal.node.outgoing import Outgoing
from shoal.node.partitions import Partition, Partitions
from shoal.node.past import Past
from shoal.node.places import Places
from shoal.node.pruning import Planning, Prunes, planned
from shoal.node.queues import Queues
from shoal.node.ranking import Ranking, Rankings
from shoal.node.reductions import Reductions
from shoal.node.retention import Retentions
from shoal.node.rules import Rules
from shoal.node.saves import Saves
from shoal.node.scalars import Counters, Registers
from shoal.node.schemas import Schemas
from shoal.node.scrutiny import Scrutiny
from shoal.node.searches import Searches
from shoal.node.sets import Sets
from shoal.node.shapes import ShapeCache
from shoal.node.standings import Standings
from shoal.node.steps import Steps
from shoal.node.target import Target, target_of
from shoal.node.transaction import ObjectRows, Transaction
from shoal.protocol import requests
from shoal.protocol.keys import key_wall_ms
from shoal.protocol.requests import SingleWrite, WriteReply
from shoal.storage import keys
from shoal.storage.commit import GroupCommit, LoggedStorage


class Writing(NamedTuple):
    """A request on its way to become an operation."""

    transaction: Transaction
    partition: Partition
    key: str | None  # The request's idempotency key.


class Logged(NamedTuple):
    """An operation that was issued here and written, and is not durable yet."""

    number: int  # Of the storage write.
    partition: Partition
    shipment: Shipment


class Issued(NamedTuple):
    reply: requests.AnyReply
    number: int  # The storage write to wait for.
    copied: VersionVector  # What other owners must hold for the write to be theirs too.
    vector: VersionVector  # Of the partition: what the reply shows.


class Receipt(msgspec.Struct, array_like=True, frozen=True):
    """What an operation keeps of the request that its key stands for."""

    digest: bytes  # SHA-256 of the request.
    reply: requests.AnyReply


_encoder = msgspec.msgpack.Encoder()
_receipt = msgspec.msgpack.Decoder(Receipt)


class Database:
    def __init__(
        self,
        storage: LoggedStorage,
        commit: GroupCommit,
        *,
        opening: Opening,
        environment: Environment,
        config: Config,
        feed: Feed,
    ) -> None:
        self._storage = storage
        self._commit = commit
        self._opening = opening
        self._environment = environment
        self._config = config
        self._feed = feed
        self._clock = HybridClock()
        self.partitions = Partitions(storage, self._clock)
        self.catalog = Catalog(storage)
        self.garbage = Collector(storage, commit, partitions=self.partitions, config=config, now=environment.monotonic)
        indexes = Indexes(storage)
        self.indexer = Indexer(storage, commit, indexes, config)
        self.generations = Generations(indexes)
        self._rankings = Rankings(config, environment.now_ms, indexes)
        shapes = ShapeCache(config.checkpoint_cache_bytes)
        checkpoints = Checkpoints(config, shapes)
        self._items = Items(config, environment.now_ms)
        lifetimes = Lifetimes(config, self.generations)
        self.documents = Documents(config, environment, self.catalog, lifetimes)
        self.eraser = Eraser(self.generations, self.garbage, self.catalog, shapes, self.documents)
        rules = Rules(storage, self.catalog, config)
        self.budgets = Budgets(opening)
        facets: list[Facet] = [
            Saves(config, shapes, rules),
            checkpoints,
            Labels(config, checkpoints),
            Branches(config),
            Scrutiny(config, checkpoints),
            Journals(config),
            Retentions(config),
            Consumers(config),
            Reductions(config),
            Queues(config),
            Places(config),
            Counters(),
            Registers(config),
            Sets(config),
            self.budgets,
            Maps(config),
            self._items,
            Searches(config, environment.now_ms, indexes),
            Declaring(config, indexes),
            Deletions(self.catalog, self.generations),
            Prunes(config),
            self.documents,
            Losses(config),
            Past(config, lifetimes),
            Steps(config),
            Standings(config),
            Schemas(config, self.catalog, rules),
        ]
        self._checks: Checks = {request: check for facet in facets for request, check in facet.checks.items()}
        self._writers: Writers = {request: writer for facet in facets for request, writer in facet.writers.items()}
        self._readers: Readers = {request: reader for facet in facets for request, reader in facet.readers.items()}
        self.outgoing = Outgoing(storage, self.partitions, self.generations)
        self.changelog = Changelog(storage, self.partitions, self.generations, self.catalog)
        self.incoming = Incoming(
            storage,
            commit,
            partitions=self.partitions,
            clock=self._clock,
            opening=opening,
            documents=self.documents,
            eraser=self.eraser,
            rules=rules,
            feed=feed,
        )
        self.on_logged: Callable[[Logged], None] | None = None  # With peers: told of every operation issued here.
        self.operations = 0

    # ── writes ────────────────────────────────────────────────────────────────

    def check(self, request: requests.AnyWrite | requests.Prune | requests.Trim) -> None:
        """
        Raises:
            InvalidInput: a name, key, value or amount is not legal; or TooLarge.
        """
        if isinstance(request, requests.Batch):
            for write in request.writes:
                self.check(write)
            return
        check_name("space", request.space)
        check = self._checks.get(type(request))
        if check is None:
            raise Unsupported(f"this node does not know {type(request).__name__}. Nothing was written.")
        check(request)

    def partition_of(self, request: requests.AnyWrite) -> int:
        """
        Raises:
            SpansPartitions, TooLarge: a batch holds nothing, too much, or objects of several partitions.
        """
        if not isinstance(request, requests.Batch):
            return target_of(request).partition
        return self._partition_of([target_of(write) for write in request.writes])

    def issue(self, request: requests.AnyWrite, key: str | None) -> Issued:
        """Decide, apply and write a request as one operation, not yet durable. A batch was passed by `partition_of`.

        Raises:
            ShoalError: as the data types say. Nothing was written.
        """
        writes: Sequence[SingleWrite] = request.writes if isinstance(request, requests.Batch) else (request,)
        targets = [target_of(write) for write in writes]
        partition = self.partitions.load(targets[0].partition)
        if key is not None and (known := self._known(partition, key, request)) is not None:
            return known
        writing = Writing(Transaction(self._storage), partition, key)
        try:
            return self._issue(writing, request, zip(targets, writes, strict=True))
        except BaseException:
            writing.transaction.abandoned()
            raise

    def introduce(self) -> int:
        """Take an origin, with a write of its own if there was none before. Returns the write that makes it last."""
        if self._opening.current is None:
            transaction = Transaction(self._storage)
            self._opening.origin(transaction)
            number = self._commit.write(transaction.rows)
            transaction.written()
            return number
        return self._commit.written

    def do_chores(self) -> None:
        """Issue what writes found to be done, as operations of their own. One that is refused is found again."""
        while self._items.chores:
            with suppress(ShoalError):
                self.issue(self._items.chores.popleft(), None)

    def _issue(self, writing: Writing, request: requests.AnyWrite, writes: Iterable[tuple[Target, SingleWrite]]) -> Issued:
        transaction, partition, key = writing
        stamp = self._stamp(writing)
        replies: list[WriteReply] = []
        mutations: list[Mutation] = []
        besides: list[Attached] = []
        staged: list[Staged] = []
        for target, write in writes:
            here = stamp._replace(nth=len(mutations)) if mutations else stamp
            generation = self.generations.current(transaction, target)
            decision = self._writers[type(write)](Site(transaction, target, generation.rows, here, key), write)
            replies.append(decision.reply)
            for made in decision.made:
                mutations.append(Mutation(target.kind, target.space, target.name, made.change, generation.number))
                besides.append(made.attached)
                at = stamp._replace(nth=len(mutations) - 1) if len(mutations) > 1 else stamp
                if self._feed.wanted(target.space):
                    staged.append(_staged(target, at, made))
                self.eraser.follow(transaction, target, at, mutations[-1], made.attached)
        reply = requests.BatchReply(replies) if isinstance(request, requests.Batch) else replies[0]  # type: ignore[arg-type]
        if not mutations:
            return Issued(reply, partition.written, partition.vector, partition.vector)
        receipt = b"" if key is None else _encoder.encode(Receipt(_digest(request), reply))
        entry = self._log(writing, stamp, mutation.encode(mutations), receipt)
        if self.on_logged is not None:
            shipped = Shipment(partition.number, *stamp.dot, entry.chain, entry.packed, attached.pack(besides))
            self.on_logged(Logged(partition.written, partition, shipped))
        if staged:
            self._feed.stage(partition.written, staged, {partition.number: partition.vector})
        return Issued(reply, partition.written, VersionVector([stamp.dot]), partition.vector)

    def _stamp(self, writing: Writing) -> Stamp:
        origin = self._opening.origin(writing.transaction)
        wall_ms = self._environment.now_ms()
        dot = Dot(origin, writing.partition.tip(origin).sequence + 1)
        return Stamp(dot, self._clock.issue(wall_ms), wall_ms, writing.partition.vector)

    def _log(self, writing: Writing, stamp: Stamp, payload: bytes, receipt: bytes) -> operation.Entry:
        """Write the operation with everything it changed; then, and only then, move what is in memory."""
        transaction, partition, key = writing
        dot = stamp.dot
        delta = stamp.context.since(partition.context)
        body = operation.encode(operation.Body(stamp.hlc, stamp.wall_ms, delta.entries(), key, payload, receipt))
        chain = operation.chain(partition.tip(dot.origin).chain, partition.number, dot, body)
        tip = operation.Tip(dot.sequence, stamp.hlc, chain)
        entry = operation.Entry(chain, body)
        transaction.put(keys.log(partition.number, dot), entry.pack())
        transaction.put(keys.vector(partition.number, dot.origin), tip.pack())
        if key is not None:
            transaction.put(keys.request_key(partition.number, key), dot.pack())
        number = self._commit.write(transaction.rows)
        partition.advance(dot, tip, written=number)
        partition.context = partition.vector
        self.operations += 1
        transaction.written()
        return entry

    def _partition_of(self, targets: Sequence[Target]) -> int:
        if not targets:
            raise SpansPartitions("a batch must hold at least one write. Nothing was written.")
        if len(targets) > self._config.batch_writes_max:
            raise TooLarge(
                f"a batch holds at most {self._config.batch_writes_max} writes; this one has {len(targets)}. "
                "Nothing was written."
            )
        first = targets[0]
        partition = first.partition
        for other in targets[1:]:
            if other.partition != partition:
                raise SpansPartitions(
                    f"a batch must stay in one partition: {first.kind.label} {first.name!r} and {other.kind.label} "
                    f"{other.name!r} do not. Nothing was written. Give their names a common tag, as in "
                    "'{crew-7}/planner' and '{crew-7}/tokens', and use one space; or put a small crew into a colocated space, "
                    "as '{crew}' or space('crew', colocated=True), where all objects share one partition."
                )
        return partition

    # ── idempotency keys ──────────────────────────────────────────────────────

    def _known(self, partition: Partition, key: str, request: requests.AnyWrite) -> Issued | None:
        """The reply that was given to this key before. Looked up ahead of every precondition."""
        claimed = self._storage.get(keys.request_key(partition.number, key))
        if claimed is not None:
            dot = Dot.unpack(claimed)
            receipt = self._receipt(partition.number, dot, key)
            if receipt.digest != _digest(request):
                raise KeyReused(
                    f"idempotency key {key!r} has come before with another request. Nothing was written. "
                    "Use a new key for a new request."
                )
            return Issued(receipt.reply, partition.written, VersionVector([dot]), partition.vector)
        made_ms = key_wall_ms(key)
        if made_ms is not None and made_ms < self._environment.now_ms() - self._config.key_window_s * 1000:
            raise KeyExpired(
                f"idempotency key {key!r} is older than {self._config.key_window_s} s, for which keys are remembered. "
                "Nothing was written now; read the state to see whether it was written then."
            )
        return None

    def _receipt(self, partition: int, dot: Dot, key: str) -> Receipt:
        try:
            return _receipt.decode(operation.decode(self._entry(partition, dot).packed).receipt)
        except (ValueError, InvalidValue) as error:  # msgspec's own are ValueErrors, and so are those of text that is no UTF-8.
            raise StoreCorrupt(
                f"what was answered to idempotency key {key!r} cannot be read ({error}). Nothing was written now; "
                "read the state to see what was written then."
            ) from None

    def _entry(self, partition: int, dot: Dot) -> operation.Entry:
        stored = self._storage.get(keys.log(partition, dot))
        if stored is None:
            raise StoreCorrupt(
                f"operation {dot.sequence} of {dot.origin.hex()} in partition {partition} is missing from the log. "
                "Nothing was written now. Run `shoal verify`."
            )
        return operation.Entry.unpack(stored)

    def planned(self, request: requests.Prune) -> Planning:
        """Plan a prune, step by step; see `shoal.node.pruning`."""
        target = target_of(request)

        def rows() -> ObjectRows:
            return self.generations.current(Transaction(self._storage), target).rows

        return planned(rows, request, self._environment.now_ms())

    def planned_trim(self, request: requests.Trim) -> retention.Planning:
        """Plan a trim, step by step; see `shoal.node.retention`."""
        target = target_of(request)

        def rows() -> ObjectRows:
            return self.generations.current(Transaction(self._storage), target).rows

        return retention.planned(rows, request, self._environment.now_ms())

    # ── reads ─────────────────────────────────────────────────────────────────

    def show(self, request: requests.ObjectRead, target: Target) -> requests.AnyReply:
        """Answer a read from what was applied here, durable or not.

        Raises:
            ShoalError: as the data types say.
        """
        reader = self._readers.get(type(request))
        if reader is None:
            raise Unsupported(f"this node does not know {type(request).__name__}.")
        return reader(self._view(target), request)

    def ranked(self, request: requests.RankItems, target: Target) -> Ranking:
        """Items by how near they are, step by step; see `shoal.node.ranking`."""
        return self._rankings.ranked(lambda: self._view(target), request)

    def _view(self, target: Target) -> View:
        place = self.document(target)
        return View(place.transaction, target, place.rows, self.vector(target), partial(self._floor_hlc, target))

    def threads(self, request: requests.ListThreads) -> listing.Found:
        """A page of a space's threads, by status and metadata."""
        return listing.threads(self.catalog, request, lambda target: self.document(target).rows, self._config)

    def step(self, begun: requests.BeginStep, attempt: str) -> requests.Step:
        """A step that was begun, as it is here; durable or not."""
        rows = self.document(target_of(begun)).rows
        entry = ledger.find(rows, begun.step)
        assert entry is not None
        return steps.shown(rows, begun.step, entry, attempt=attempt)

    def document(self, target: Target) -> Place:
        transaction = Transaction(self._storage)
        return Place(transaction, self.generations.current(transaction, target).rows, target)

    def vector(self, target: Target) -> VersionVector:
        return self.vector_of(target.partition)

    def vector_of(self, partition: int) -> VersionVector:
        """What was applied here, durable or not."""
        return self.partitions.load(partition).vector

    def holds(self, partition: int, wanted: VersionVector) -> bool:
        return not wanted or self.vector_of(partition).dominates(wanted)

    def _floor_hlc(self, target: Target, seen: VersionVector) -> int | None:
        """The least HLC of the operations that `seen` does not cover; None if the log cannot tell."""
        partition = self.partitions.load(target.partition)
        floor = self._clock.last + 1
        for origin, lacking in partition.vector.missing(seen).items():
            stored = self._storage.get(keys.log(partition.number, Dot(origin, lacking.start)))
            if stored is None:
                return None
            floor = min(floor, operation.decode(operation.Entry.unpack(stored).packed).hlc)
        return floor

    def durable(self, target: Target) -> Awaitable[None]:
        """Wait until what a read of this object can show is durable."""
        return self.durable_of(target.partition)

    def durable_of(self, partition: int) -> Awaitable[None]:
        return self._commit.covered(self.partitions.written(partition))

    def clock_ahead_ms(self) -> int:
        """How far operations' times are ahead of this node's clock."""
        return self._clock.ahead_ms(self._environment.now_ms())

    def all_durable(self) -> Awaitable[None]:
        return self._commit.covered(self._commit.written)


def _digest(request: requests.AnyWrite) -> bytes:
    """Of what a key stands for. Not of where a save's author stood: who repeats it may meanwhile have found the first one's."""
    if isinstance(request, requests.Save):
        request = _placeless(request)
    elif isinstance(request, requests.Batch):
        writes = [_placeless(write) if isinstance(write, requests.Save) else write for write in request.writes]
        request = requests.Batch(writes)
    return sha256(_encoder.encode(request)).digest()


def _placeless(save: requests.Save) -> requests.Save:
    return msgspec.structs.replace(save, parent=None, fork=False, setting=b"", seen=b"")


def _staged(target: Target, stamp: Stamp, made: Made) -> Staged:
    what = str(type(made.change).__struct_config__.tag)
    change = requests.Change(target.space, LABELS[target.kind], target.name, what, made.id, stamp.hlc, stamp.wall_ms)
    if isinstance(made.change, document.Update):
        edit = requests.Edit(made.attached.content, made.change.kinds, made.change.authors)
        return Staged(target.partition, change, stamp, edit)
    if isinstance(made.change, deletion.Delete):
        return Staged(target.partition, change, stamp, began=made.change.generation + 1)
    return Staged(target.partition, change, stamp)
