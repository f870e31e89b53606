"""Data types over storage: every write becomes one operation, every read is covered by an fsync.

Laws:
- An incarnation takes a new random origin at its first write and records it in the
  batch that uses it first, so no restart, restore or clone reuses a dot.
- A write becomes an operation as `shoal.node.writes.issuing` says.
- A read waits for the group commit that covers the last write to its partition.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from functools import cached_property, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from shoal.cluster import operation
from shoal.crdt.dot import Dot, VersionVector
from shoal.errors import ShoalError, Unsupported
from shoal.kinds import declared
from shoal.kinds.budget.course import Courses
from shoal.kinds.budget.handler import Budgets
from shoal.kinds.document.serving.late import LateDocuments
from shoal.kinds.file.serving.files import Files, Referring, Unsure, referred
from shoal.kinds.file.serving.keeping import FileKeeper
from shoal.kinds.items.serving.indexes import Declaring, Indexer, Indexes
from shoal.kinds.items.serving.items import Items
from shoal.kinds.items.serving.ranking import Rankings
from shoal.kinds.items.serving.searches import Searches
from shoal.kinds.journal.serving.journals import Journals, Retentions
from shoal.kinds.journal.serving.readers import Consumers, ProgressHandler, Reductions
from shoal.kinds.label.handler import Labels
from shoal.kinds.map.handler import Maps
from shoal.kinds.redaction.serving.hooks import Hook
from shoal.kinds.redaction.serving.redactor import Redactor
from shoal.kinds.retention.serving.threads import ThreadRetention
from shoal.kinds.schema.handler import Rules, Schemas
from shoal.kinds.step.handler import StatusHandler, StatusLister, Steps
from shoal.kinds.thread.serving.checkpoints import Checkpoints, Inspection, Verifying
from shoal.kinds.thread.serving.ownership import Fencing
from shoal.kinds.thread.serving.pruning import Prunes
from shoal.kinds.thread.serving.saves import Branches, Saves
from shoal.kinds.thread.serving.shapes import ShapeCache
from shoal.kinds.worklist.serving.queues import Queues, Tries
from shoal.node.catalog import Catalog
from shoal.node.collection.answers import Erasure, changed_by
from shoal.node.collection.entries import Generations
from shoal.node.collection.expiring import KeySweeper
from shoal.node.collection.garbage import Collector
from shoal.node.collection.retiring import Orphans, Retiring
from shoal.node.collection.truncating import Truncator
from shoal.node.context import NodeContext
from shoal.node.handler import (
    Contest,
    Contests,
    Handler,
    Maintainers,
    Memories,
    Place,
    Preparation,
    Readers,
    Scan,
    Scans,
    Target,
    Upkeep,
    View,
    target_of,
)
from shoal.node.snapshots.switching import listed, spaces_of
from shoal.node.tiering.chunks import Chunks
from shoal.node.transaction import Transaction
from shoal.node.turns import Steps as Turns
from shoal.node.turns import at_once, in_turns
from shoal.node.watching.changelog import Changelog
from shoal.node.writes.erasing import OBJECTS_KNOWN_MAX, Cleaning, Deletions, Eraser
from shoal.node.writes.issuing import Issued, Issuer
from shoal.protocol import requests
from shoal.records import NamedTuple
from shoal.storage import keys
from shoal.storage.keys import Kind

if TYPE_CHECKING:
    from shoal.kinds.document.serving.documents import Documents
    from shoal.node.peers.outgoing import Exchange


class BeforeSwitch(NamedTuple):
    """The state of a partition before it is replaced."""

    transaction: Transaction  # Rows to be written with the first ones of the switch.
    spaces: set[str]  # Those that have objects in it.
    drawn: dict[Target, int]  # Budgets of which this incarnation drew rights that are not settled, and their generations.


class _Kinds:
    """The handlers of all kinds, by the requests that they serve, and what they keep in memory."""

    def __init__(self, context: NodeContext, database: Database, indexes: Indexes) -> None:
        config, now_ms = context.config, context.environment.now_ms
        catalog, generations, claims = database.catalog, database.generations, database.claims
        self.shapes = ShapeCache(config.checkpoint_cache_bytes)
        self.rankings = Rankings(config, now_ms, indexes)
        self.items = Items(config, now_ms)
        self.budgets = Budgets(
            context.incarnation,
            Courses(context, lambda target: database.document(target).rows),
            inherited=lambda number: database.orphans.inherited_origins(number),
        )
        self.maps = Maps(
            context.incarnation,
            config,
            settled=claims.settled,
            inherited=lambda number: database.orphans.inherited_adds(number),
            added=claims.added,
            crowded=claims.crowded,
        )
        self.late_documents = LateDocuments(
            context,
            catalog=catalog,
            generations=generations,
            prepare=lambda request: database.prepare([(request, target_of(request))]),
            issue=lambda request: database.issue(request, None),
            guard=database.redactor.guard,
        )
        rules = self.rules = Rules(context.storage, catalog, generations)
        self.memories = Memories(
            {
                Kind.THREAD: (self.shapes,),
                Kind.DOCUMENT: (self.late_documents,),
                Kind.ITEMS: (indexes, self.rankings),
                Kind.MAP: (self.maps.sums,),
                Kind.BUDGET: (self.budgets,),
                Kind.SCHEMA: (rules,),
            }
        )
        checkpoints = Checkpoints(config, self.shapes)
        retentions = Retentions(now_ms, shown=lambda number: context.partitions.load(number).shown)
        self.handlers: list[Handler] = [
            Saves(config, self.shapes, rules),
            checkpoints,
            Labels(config, checkpoints),
            Fencing(),
            Branches(),
            Inspection(config, checkpoints),
            verifying := Verifying(config),
            Journals(config),
            retentions,
            Consumers(config),
            Reductions(),
            queues := Queues(config),
            Tries(config, queues),
            ProgressHandler(),
            *(make(config) for _, make in declared("handler", "handler")),
            self.budgets,
            self.maps,
            self.items,
            searches := Searches(config, now_ms, indexes),
            Declaring(indexes),
            Deletions(catalog, generations),
            prunes := Prunes(config, now_ms),
            self.late_documents,
            steps := Steps(config),
            files := Files(config, context.environment.give_back),
            StatusHandler(),
            Schemas(catalog, rules),
        ]
        self.readers: Readers = {kind: reader for handler in self.handlers for kind, reader in handler.readers.items()}
        self.scans: Scans = {**self.rankings.scans, **verifying.scans, **searches.scans, **checkpoints.scans}
        self.retention = ThreadRetention(
            {**prunes.maintenance, **retentions.maintenance},
            now_ms=now_ms,
            delete=lambda request: database.issue(request, None),
            written=context.partitions.written,
        )
        self.handlers.append(self.retention)
        self.maintenance: Maintainers = {
            **prunes.maintenance,
            **retentions.maintenance,
            **self.items.maintenance,
            **files.maintenance,
            **self.retention.maintenance,
        }
        self.contests: Contests = steps.contests


class Database:
    """The data types of one node, composed over one storage. All methods are called on the event loop.

    `replaced` is called after a snapshot of a peer has replaced a partition. `hooks`: those of redaction that this node has.
    """

    def __init__(
        self, context: NodeContext, *, replaced: Callable[[], None], hooks: Mapping[str, Hook] = MappingProxyType({})
    ) -> None:
        self._context = context
        self._storage, self._commit = context.storage, context.commit
        self._told_replaced = replaced
        self.partitions = context.partitions
        self.catalog = Catalog(context.storage, known_max=OBJECTS_KNOWN_MAX)
        self.erasure = Erasure(context)
        self.garbage = Collector(context, self.erasure)
        self.truncator = Truncator(context, self.garbage)
        indexes = Indexes(
            context.storage,
            due=lambda target: self.indexer.stir(target),
            moved=lambda target, path: self._kinds.rankings.moved(target, path),
        )
        self.indexer = Indexer(context, indexes)
        self.generations = Generations(indexes, known_max=OBJECTS_KNOWN_MAX)
        self.chunks = Chunks(context, generations=self.generations)
        """Those that are in an object store."""
        self.claims = KeySweeper(
            context,
            issue=lambda request: self.issue(request, None).reply,
            is_own=lambda add: self._kinds.maps.is_own(add),
            generations=self.generations,
        )
        self.redactor = Redactor(context, read=self.show, hooks=hooks)
        """Replaces in what clients write, before anything else is done for it."""
        self.statuses = StatusLister(context, self.catalog, self.generations)
        kinds = self._kinds = _Kinds(context, self, indexes)
        self.budgets, self.late_documents = kinds.budgets, kinds.late_documents
        self.prepared = frozenset(self.late_documents.preparations)
        """The requests that may need preparations: most writes are none of these, and need not ask."""
        self.files = FileKeeper(
            context,
            rows=lambda target: self.document(target).rows,
            maintained=self.maintained,
            issue=lambda request: self.issue(request, None).reply,
            is_swept=self.garbage.is_sweeping_files,
        )
        self.eraser = Eraser(
            context,
            generations=self.generations,
            cleaning=Cleaning(self.garbage, self.erasure, self.files),
            catalog=self.catalog,
            shapes=kinds.shapes,
            ended=kinds.memories.ended,
        )
        self.changelog = Changelog(context.storage, self.partitions, self.generations, self.catalog)
        self.issuer = Issuer(
            context,
            handlers=kinds.handlers,
            generations=self.generations,
            eraser=self.eraser,
            keyed=self.claims.keyed,
            elsewhere=lambda: kinds.rules.changes,
        )
        self.retiring = Retiring(
            context,
            retire=self.issuer.retire,
            left=lambda target: self.budgets.over(self.document(target).rows),
            fold=self.claims.fold_all,
        )
        self.orphans = Orphans(
            context,
            retire=self.issuer.retire,
            fold=partial(self.claims.fold_each, inherited=True),
            left=lambda target: self.budgets.left(self.document(target).rows),
            issue=lambda request: self.issue(request, None),
        )

    @cached_property
    def exchange(self) -> Exchange:
        """The exchange of this database, which peers need."""
        from shoal.node.peers.outgoing import Exchange

        return Exchange(
            self._context,
            chunks=self.chunks,
            memories=self._kinds.memories,
            eraser=self.eraser,
            garbage=self.garbage,
            forget=self._replaced,
            keyed=self.claims.keyed,
        )

    @property
    def documents(self) -> Documents:
        """The live documents."""
        return self.late_documents.room.documents

    # ── writes ────────────────────────────────────────────────────────────────

    def issue(self, request: requests.AnyWrite, key: str | None) -> Issued:
        """Issue what this node asks of itself; it is checked, and rejected, as what a client asks. See `Issuer`."""
        self.issuer.check(request)
        return self.issuer.issue(self.issuer.locate(request), key)

    def do_chores(self) -> None:
        """Issue the follow-up work that writes noted, as operations of their own. A later write notes a rejected one again."""
        while self._kinds.items.chores:
            with suppress(ShoalError):
                self.issue(self._kinds.items.chores.popleft(), None)
        self.late_documents.stir()

    def preparations(self, wanted: Iterable[tuple[requests.Request[Any], Target]]) -> list[Preparation]:
        """The preparations that requests about these objects need, in steps, before they can be decided or answered; mostly
        none.
        """
        found: list[Preparation] = []
        for request, target in wanted:
            prepare = self.late_documents.preparations.get(type(request))
            if prepare is not None and (steps := prepare(target, partial(self._view, target), request)) is not None:
                found.append(steps)
        return found

    async def prepare(self, wanted: Iterable[tuple[requests.Request[Any], Target]]) -> None:
        """Do what `preparations` says; others get a turn meanwhile."""
        for steps in self.preparations(wanted):
            await in_turns(steps, self._context.environment.pause)

    async def referring(self, unsure: Unsure) -> Referring:
        """Rows of a thread that refer to files which were dropped; others get a turn meanwhile."""
        steps = referred(lambda: self.document(unsure.target).rows, unsure.hashes)
        found = await in_turns(steps, self._context.environment.pause)
        return {(unsure.target, hash): found.get(hash, b"") for hash in unsure.hashes}

    def maintained(self, request: requests.Maintenance[Any]) -> Upkeep:
        """Carry out a maintenance, step by step.

        Raises:
            Unsupported: nothing here carries it out.
        """
        target = target_of(request)
        maintain = self._kinds.maintenance.get(type(request))
        if maintain is None:
            raise Unsupported(f"this node does not know {type(request).__name__}. Nothing was written.")
        return maintain(lambda: self.document(target).rows, request)

    def retains(self, request: requests.Maintenance[Any]) -> Turns[int]:
        """How many checkpoints and events a rule lets go of a thread now, step by step; 1 if it goes whole."""
        target = target_of(request)
        return self._kinds.retention.due(lambda: self.document(target).rows, request)

    def contest_of(self, request: requests.AnyWrite) -> Contest | None:
        """How to answer a write that two nodes may decide at once; None: any other."""
        return self._kinds.contests.get(type(request))

    def decided_again(
        self, contest: Contest, request: requests.ObjectWrite[Any], reply: requests.AnyReply
    ) -> requests.AnyReply:
        """The reply to a write that was made here, as its object is now; durable or not."""
        return contest.again(self._view(target_of(request)), request, reply)

    def dead(self, issued: Issued) -> list[Target]:
        """The objects whose changes by a write have no effect, because a deletion ended their generation."""
        transaction = Transaction(self._storage)
        changed = issued.changed if issued.again else changed_by(issued.mutations)
        found = [c.target for c in changed if c.generation < self.generations.current(transaction, c.target).number]
        return list(dict.fromkeys(found))

    def _replaced(self, transaction: Transaction, target: Target) -> None:
        """Drop what memory holds of an object once the transaction that replaces its rows is written."""
        self._kinds.memories.replaced(transaction, target)
        if target.kind is Kind.THREAD:
            self.eraser.list_thread(transaction, target)
        transaction.when_written(lambda: self.generations.forget(target))

    # ── partitions that are replaced ──────────────────────────────────────────

    def before_switch(self, number: int) -> BeforeSwitch:
        """Take note of what must be compared once a partition, which is closed, has been replaced."""
        drawn = {target: self._generation_of(target) for target in self.budgets.in_doubt(number)}
        transaction = Transaction(self._storage)
        if self.partitions.load(number).vector:
            self.erasure.note(transaction)  # The old rows stay in the files for a while.
        transaction.rows.update(self.catalog.unmarked())
        return BeforeSwitch(transaction, spaces_of(self._storage, number), drawn)

    def after_switch(self, number: int, before: BeforeSwitch) -> None:
        """Forget all that memory holds of a partition: rows of a peer's snapshot have replaced its own, and are durable."""
        before.transaction.written()
        partition = self.partitions.replaced(number)
        self.catalog.replaced()
        self._told_replaced()
        self.generations.forget_all()
        self.eraser.forget_all()
        self._kinds.memories.forget_partition(number)
        spaces = before.spaces | spaces_of(self._storage, number)
        for target in listed(self._storage, number, Kind.BUDGET):
            if target not in before.drawn:
                self.budgets.switched(target, ended=False)
        for target, generation in before.drawn.items():
            self.budgets.switched(target, ended=self._generation_of(target) != generation)
        self.garbage.replaced(number)
        self.files.replaced(number)
        self.claims.keyed(number)
        self._context.feed.replaced(number, spaces, partition.vector)

    def _generation_of(self, target: Target) -> int:
        return self.generations.current(Transaction(self._storage), target).number

    @property
    def clock_last(self) -> int:
        """The greatest time of any operation that was issued or applied here."""
        return self._context.clock.last

    # ── reads ─────────────────────────────────────────────────────────────────

    def show(self, request: requests.ObjectRead[Any], target: Target) -> requests.AnyReply:
        """Answer a read from the operations applied here, durable or not.

        Raises:
            Unsupported: no handler knows the request.
            ShoalError: as the data types say.
        """
        reader = self._kinds.readers.get(type(request))
        if reader is not None:
            return reader(self._view(target), request)
        scan = self.scan(request, target)
        if scan is None:
            raise Unsupported(f"this node does not know {type(request).__name__}.")
        return at_once(scan)

    def scan(self, request: requests.ObjectRead[Any], target: Target) -> Scan | None:
        """Answer a read step by step, if it is one of those that take long."""
        scan = self._kinds.scans.get(type(request))
        return None if scan is None else scan(lambda: self._view(target), request)

    def _view(self, target: Target) -> View:
        place = self.document(target)
        shown = self.partitions.load(target.partition).shown
        return View(place.transaction, target, place.rows, shown, partial(self._floor_hlc, target))

    def document(self, target: Target) -> Place:
        """The rows of an object's current generation, of any kind, in a transaction of their own."""
        if self.partitions.closed and target.partition in self.partitions.closed:
            self.partitions.load(target.partition).check_open()
        transaction = Transaction(self._storage)
        return Place(transaction, self.generations.current(transaction, target).rows, target)

    def vector(self, target: Target) -> VersionVector:
        """As `vector_of`, for the object's partition."""
        return self.vector_of(target.partition)

    def vector_of(self, partition: int) -> VersionVector:
        """The operations applied here in a partition, durable or not."""
        return self.partitions.load(partition).vector

    def holds(self, partition: int, wanted: VersionVector) -> bool:
        """Whether all operations that `wanted` covers were applied here, durable or not."""
        return not wanted or self.vector_of(partition).dominates(wanted)

    def _floor_hlc(self, target: Target, seen: VersionVector) -> int | None:
        """The least HLC of the operations that `seen` does not cover; None if the log cannot tell."""
        partition = self.partitions.load(target.partition)
        retired = partition.retired.lacking(seen) if seen else None
        if retired is None:
            return None
        floor = self._context.clock.last + 1
        first = [Dot(origin, seen[origin] + 1) for origin, _ in retired]
        first += [Dot(origin, lacking.start) for origin, lacking in partition.vector.missing(seen).items()]
        for dot in first:
            stored = self._storage.get(keys.log(partition.number, dot))
            if stored is None:
                return None
            floor = min(floor, operation.decode(operation.LogEntry.unpack(stored).packed).hlc)
        return floor

    def durable(self, target: Target) -> Awaitable[None]:
        """Wait until everything that a read of this object can show is durable."""
        return self.durable_of(target.partition, target.space)

    def durable_of(self, partition: int, space: str = "") -> Awaitable[None]:
        """Wait until the last write of a partition is durable, for a request of a space.

        Raises:
            StorageFull: the sync failed; the outcome of that write is unknown.
        """
        return self._commit.wait_durable(self.partitions.written(partition), space)

    def clock_ahead_ms(self) -> int:
        """How far the times of operations are ahead of this node's clock."""
        return self._context.clock.ahead_ms(self._context.environment.now_ms())

    def all_durable(self) -> Awaitable[None]:
        """As `durable_of`, for the last write of any partition."""
        return self._commit.wait_durable(self._commit.written)
