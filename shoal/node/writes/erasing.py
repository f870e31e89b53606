"""Deletions, and changes that arrive after one, of operations issued here and received alike.

Laws:
- A change of the current generation lists its object in the catalog; a deletion removes it.
- A change that arrives after its generation ended has no effect. It is counted, and its
  blobs are kept until no peer can ask for them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress

from shoal.crdt import deletion
from shoal.crdt.document import compaction
from shoal.crdt.items import items
from shoal.crdt.rows import Rows, Stamp
from shoal.crdt.thread import dag, journal, notes, ownership, pruning, status, trimming
from shoal.crdt.values import ormap, orset
from shoal.errors import BadOperation, StoreCorrupt
from shoal.names import check_label, check_name
from shoal.node.appliers.mutation import Mutation
from shoal.node.blobs import Blobs
from shoal.node.catalog import Catalog
from shoal.node.collection.entries import What
from shoal.node.collection.erasure import Erasure
from shoal.node.collection.garbage import Collector
from shoal.node.collection.generations import Generation, Generations
from shoal.node.handler import Checks, Readers, WriteContext, Writers
from shoal.node.partitions import Partitions
from shoal.node.recent import Recent
from shoal.node.target import Target, named_by
from shoal.node.thread.fencing import UnderLease
from shoal.node.thread.shapes import ShapeCache, Spot
from shoal.node.transaction import Transaction
from shoal.protocol.requests import (
    DeleteBudget,
    DeleteCounter,
    Deleted,
    DeleteMap,
    DeleteRegister,
    DeleteSchema,
    DeleteSet,
    DeleteThread,
    EndItems,
    ObjectWrite,
)

DEAD_LISTED_MAX = 100
_DELETIONS = (DeleteThread, DeleteCounter, DeleteRegister, DeleteSet, DeleteMap, DeleteBudget, DeleteSchema, EndItems)
_REMOVING = frozenset((items.Delete, items.Expire, ormap.Remove, orset.Alter))
_ASKING = (
    frozenset((deletion.Delete, pruning.Prune, trimming.Trim, compaction.Compact, dag.Save, status.Move, ownership.LeaseMark))
    | frozenset((journal.Append, journal.Erase, notes.Cut))
    | _REMOVING
)
"""Changes that need more than an entry of their object in the catalog."""


class Deletions:
    """The handler of all deletions of objects but documents. `Eraser` applies the deletion."""

    def __init__(self, catalog: Catalog, generations: Generations) -> None:
        self._catalog = catalog
        self._generations = generations
        self.checks: Checks = dict.fromkeys(_DELETIONS, self._check)
        self.writers: Writers = dict.fromkeys(_DELETIONS, self._delete)
        self.readers: Readers = {}

    def _check(self, request: ObjectWrite[Deleted]) -> None:
        kind, name = named_by(request)
        if kind == "items":
            check_label(name)
        else:
            check_name(kind, name)

    def _delete(self, context: WriteContext, _request: ObjectWrite[Deleted]) -> Deleted:
        """End the object's generation. Deleting an object that does not exist succeeds."""
        if not self._catalog.lists(context.transaction, context.target):
            context.is_remembered = True
            return Deleted(existed=False)
        number = self._generations.current(context.transaction, context.target).number
        context.end(deletion.Delete(number))
        return Deleted(existed=True)


class Eraser:
    """Applies what a change requires outside its object's rows: the catalog, the garbage queue, caches.

    `ended` drops what memory holds of an object whose generation a transaction ends.
    `dead` describes the last `DEAD_LISTED_MAX` changes that arrived too late, for people.
    """

    def __init__(
        self,
        generations: Generations,
        garbage: Collector,
        *,
        erasure: Erasure,
        partitions: Partitions,
        catalog: Catalog,
        shapes: ShapeCache,
        ended: Callable[[Transaction, Target], None],
        known_max: int,
    ) -> None:
        self._erasure = erasure
        self._partitions = partitions
        self._generations = generations
        self._garbage = garbage
        self._catalog = catalog
        self._shapes = shapes
        self._ended = ended
        self._unpruned: Recent[Target] = Recent(known_max)  # Threads known to have no pruned checkpoint: a save need not look.
        self._unmarked: Recent[Target] = Recent(known_max)  # Threads known never to have been under a lease, likewise.
        self.dead: deque[str] = deque(maxlen=DEAD_LISTED_MAX)

    def belongs(self, transaction: Transaction, target: Target, change: Mutation) -> Generation | None:
        """The generation that a peer's change belongs to; None if it has ended.

        Raises:
            BadOperation: that generation does not exist. Causal delivery brings a deletion before what builds on it.
        """
        current = self._generations.current(transaction, target)
        if not 0 <= change.generation <= current.number:
            raise BadOperation(f"it belongs to generation {change.generation}, which does not exist", reason="content")
        return current if change.generation == current.number else None

    def follow(self, transaction: Transaction, target: Target, stamp: Stamp, change: Mutation, beside: Blobs) -> None:
        """Do what an applied change requires outside its object's rows; a deletion is applied here."""
        if type(change.change) in _ASKING:
            self._do_asked(transaction, target, stamp, change, beside)
        else:
            self._catalog.enter(transaction, target)

    def _do_asked(self, transaction: Transaction, target: Target, stamp: Stamp, change: Mutation, beside: Blobs) -> None:
        made = change.change
        if isinstance(made, deletion.Delete):
            self._delete(transaction, target, stamp, change, made)
            return
        self._catalog.enter(transaction, target)
        if isinstance(made, dag.Save):  # First, because most changes are saves.
            marking = self._garbage.markings.get(target)
            if marking is not None and beside.content:
                marking.protect(dag.decode_record(beside.content))
        elif isinstance(made, journal.Append):
            self._sweep_late(transaction, target, stamp, change)
        elif isinstance(made, journal.Erase):
            rows = self._generations.current(transaction, target).rows
            positions = b"".join(journal.kept_aside(rows, made))
            self._garbage.enter(transaction, stamp, What.VALUES, target, change.generation, positions)
        elif isinstance(made, pruning.Prune):
            self._unpruned.drop(target)
            transaction.when_written(lambda: self._unpruned.drop(target))
            self._garbage.enter_left(transaction, stamp, target, change)
            spots = [Spot(target.space, target.name, id) for id in made.ids]
            self._shapes.drop(spots)
            transaction.when_written(lambda: self._shapes.drop(spots))
        elif isinstance(made, trimming.Trim | notes.Cut | compaction.Compact):
            self._garbage.enter_left(transaction, stamp, target, change)
        elif isinstance(made, ownership.LeaseMark):
            self._unmarked.drop(target)
            transaction.when_written(lambda: self._unmarked.drop(target))
        elif isinstance(made, status.Move):
            self.list_status(transaction, target)
        elif not isinstance(made, orset.Alter) or made.remove:
            self._erasure.note(transaction)

    def _sweep_late(self, transaction: Transaction, target: Target, stamp: Stamp, change: Mutation) -> None:
        """Have the value of an append swept that arrived after the erasure of its event."""
        position = stamp.pack_position()
        if self._generations.current(transaction, target).rows.key(trimming.aside(position)) in transaction.rows:
            self._garbage.enter_left(transaction, stamp, target, change)

    def list_status(self, transaction: Transaction, target: Target) -> None:
        """List a thread under the status that its rows say."""
        with suppress(StoreCorrupt):  # It is listed once the thread has been rebuilt.
            current = status.current(self._generations.current(transaction, target).rows)
            self._catalog.set_status(transaction, target, "running" if current is None else current.status)

    def may_have_pruned(self, rows: Rows, target: Target) -> bool:
        """Whether checkpoints of a thread may have been pruned; `rows` are the thread's."""
        if target in self._unpruned:
            return False
        if pruning.ever_pruned(rows):
            return True
        self._unpruned.put(target)
        return False

    def forget_all(self) -> None:
        """Forget which threads have no pruned checkpoint, and which were never under a lease."""
        self._unpruned.clear()
        self._unmarked.clear()

    def check_free(self, target: Target, rows: Rows, ended: int) -> None:
        """Check that a thread is under no lease. Leases up to the fencing number `ended` are known to be over.

        Raises:
            UnderLease: the thread is marked.
        """
        if target not in self._unmarked:
            mark = ownership.marked(rows)
            if mark is None:
                self._unmarked.put(target)
            elif not mark.over and mark.fence > ended:
                raise UnderLease(target, mark)

    def check(self, change: Mutation) -> None:
        """Check a peer's change, if it is a deletion.

        Raises:
            BadOperation: it ends another generation than the one it belongs to, or the last possible one.
        """
        made = change.change
        if isinstance(made, deletion.Delete) and not change.generation == made.generation < deletion.GENERATIONS_MAX - 1:
            raise BadOperation("it ends a generation other than its own", reason="content")

    def _delete(self, transaction: Transaction, target: Target, stamp: Stamp, change: Mutation, made: deletion.Delete) -> None:
        self._garbage.enter_left(transaction, stamp, target, change)
        transaction.when_written(lambda: self._partitions.load(target.partition).ends(stamp.dot))
        if self._generations.delete(transaction, target, stamp, made):
            self._catalog.leave(transaction, target)
            self._ended(transaction, target)

    def bury(self, transaction: Transaction, target: Target, stamp: Stamp, change: Mutation, beside: Blobs) -> None:
        """Record a change that arrived after its generation ended: keep its blobs, and count it."""
        self._generations.bury(transaction, target, stamp, change, beside)
        # The rows of its generation may have been swept already, so this needs an entry of its own.
        self._garbage.enter(transaction, stamp, What.GENERATION, target, change.generation)
        tag = change.change.__struct_config__.tag
        text = f"{tag} of {target.kind.label} {target.name!r} in space {target.space!r} by {stamp.dot.origin.hex()[:16]}"

        def count() -> None:
            self._garbage.died += 1
            self.dead.append(text)

        transaction.when_written(count)
