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
from dataclasses import dataclass
from functools import partial
from typing import cast

from shoal.crdt import deletion
from shoal.crdt.applier import Blobs, Effects, Sweep, What
from shoal.crdt.rows import Rows, Stamp
from shoal.errors import BadOperation, StoreCorrupt
from shoal.kinds import Kind
from shoal.kinds.file.serving.keeping import FileKeeper
from shoal.kinds.label import state as labels
from shoal.kinds.step import state as steps
from shoal.kinds.thread.serving.ownership import UnderLease
from shoal.kinds.thread.serving.shapes import ShapeCache, Spot
from shoal.kinds.thread.state import pruning
from shoal.names import check_label, check_name
from shoal.node import mutation
from shoal.node.catalog import Catalog, Recent, is_asking, standing_of
from shoal.node.collection.answers import Erasure, ErasureDue
from shoal.node.collection.entries import Generation, Generations
from shoal.node.collection.garbage import Collector
from shoal.node.context import NodeContext
from shoal.node.handler import Checks, Readers, Target, WriteContext, Writers, named_by
from shoal.node.mutation import Mutation
from shoal.node.transaction import ObjectRows, Transaction
from shoal.protocol.requests import Deleted, ObjectWrite, reply_of
from shoal.protocol.requests.families import operations

OBJECTS_KNOWN_MAX = 8192  # Objects known, without a lookup, to be in the catalog and never deleted.

DEAD_LISTED_MAX = 100


class Deletions:
    """The handler of all deletions of objects but documents. `Eraser` applies the deletion."""

    def __init__(self, catalog: Catalog, generations: Generations) -> None:
        self._catalog = catalog
        self._generations = generations
        deletions = [kind for kind in operations(ObjectWrite) if reply_of(kind) is Deleted]
        self.checks: Checks = dict.fromkeys(deletions, self._check)
        self.writers: Writers = dict.fromkeys(deletions, self._delete)
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
            return Deleted(existed=False)
        number = self._generations.current(context.transaction, context.target).number
        context.end(deletion.Delete(number))
        return Deleted(existed=True)


@dataclass(frozen=True, slots=True)
class Cleaning:
    """The parts that remove, later, all that a change leaves behind."""

    garbage: Collector  # Its rows.
    erasure: Erasure  # Their bytes on the disk.
    files: FileKeeper  # Chunks of files.


class Eraser:
    """Applies what a change requires outside its object's rows: the catalog, the garbage queue, caches.

    `ended` drops what memory holds of an object whose generation a transaction ends.
    `dead` describes the last `DEAD_LISTED_MAX` changes that arrived too late, for people.
    """

    def __init__(
        self,
        context: NodeContext,
        *,
        generations: Generations,
        cleaning: Cleaning,
        catalog: Catalog,
        shapes: ShapeCache,
        ended: Callable[[Transaction, Target], None],
    ) -> None:
        self._garbage, self._erasure, self._files = cleaning.garbage, cleaning.erasure, cleaning.files
        self._partitions = context.partitions
        self._generations = generations
        self._catalog = catalog
        self._shapes = shapes
        self._ended = ended
        self._unpruned: Recent[Target] = Recent(
            OBJECTS_KNOWN_MAX
        )  # Threads known to have no pruned checkpoint: a save need not look.
        self._unmarked: Recent[Target] = Recent(OBJECTS_KNOWN_MAX)  # Threads known never to have been under a lease, likewise.
        self.dead: deque[str] = deque(maxlen=DEAD_LISTED_MAX)

    @property
    def due(self) -> ErasureDue | None:
        """The erasure that is due at this node: another object once it changes."""
        return self._erasure.mark

    def belongs(self, transaction: Transaction, target: Target, change: Mutation) -> Generation | None:
        """The generation that a peer's change belongs to; None if it has ended.

        Raises:
            BadOperation: that generation does not exist. Causal delivery brings a deletion before what builds on it.
        """
        current = self._generations.current(transaction, target)
        if not 0 <= change.generation <= current.number:
            raise BadOperation(f"it belongs to generation {change.generation}, which does not exist", reason="content")
        return current if change.generation == current.number else None

    def follow(
        self,
        transaction: Transaction,
        target: Target,
        stamp: Stamp,
        change: Mutation,
        beside: Blobs,
        rows: ObjectRows | None = None,
    ) -> None:
        """Do what an applied change requires outside its object's rows; a deletion is applied here.

        `rows` are those of the object's current generation, if the caller has them.
        """
        effects = mutation.EFFECTS.get(type(change.change))
        # Once it is written: a heavy change was decided long before. Else nobody can begin to look through it meanwhile.
        if target.kind is Kind.THREAD and (transaction.lasts or target in self._garbage.unmoved):
            transaction.when_written(partial(self._garbage.unmoved.discard, target))
        if effects is None:
            self._catalog.enter(transaction, target)
        elif effects.ends:
            self._delete(transaction, target, stamp, change, cast(deletion.Delete, change.change))
        else:
            self._catalog.enter(transaction, target)
            self._have(effects, transaction, target, stamp, change, beside, rows)

    def _have(
        self,
        effects: Effects,
        transaction: Transaction,
        target: Target,
        stamp: Stamp,
        change: Mutation,
        beside: Blobs,
        rows: ObjectRows | None,
    ) -> None:
        made = change.change
        if effects.record is not None and beside.content and (marking := self._garbage.markings.get(target)) is not None:
            marking.protect(effects.record(beside))
        sweeps = effects.sweeps
        if sweeps is not None and (sweeps.found is None or rows is None or sweeps.found(rows, stamp, made) is not None):
            self._enter(sweeps, transaction, target, stamp, change, rows)
        else:
            sweeps = None
        if effects.hides is not None:
            spots = [Spot(target.space, target.name, id) for id in effects.hides(made)]
            _at_once_and_later(transaction, lambda: self._hide(target, spots))
        if effects.marks_lease:
            _at_once_and_later(transaction, lambda: self._unmarked.drop(target))
        if effects.lists:
            self.list_thread(transaction, target, made.step if isinstance(made, steps.Change) else None)
        elif effects.asks is not None:
            if rows is None:
                rows = self._generations.current(transaction, target).rows
            if (touches := effects.asks(rows, made, beside)) is not None:
                self._look(transaction, target, touches=touches)
        if effects.files:
            self._files.changed(transaction, target)
        elif target.kind is Kind.THREAD and (effects.hides is not None or sweeps is not None):
            self._files.freed(transaction, target)
        if effects.frees is not None and effects.frees(made):
            self._erasure.note(transaction)

    def _enter(
        self,
        sweep: Sweep,
        transaction: Transaction,
        target: Target,
        stamp: Stamp,
        change: Mutation,
        rows: ObjectRows | None,
    ) -> None:
        if sweep.found is None:
            self._garbage.enter_left(transaction, stamp, target, change)
            return
        if rows is None:
            rows = self._generations.current(transaction, target).rows
        if (ends := sweep.found(rows, stamp, change.change)) is not None:
            self._garbage.enter(transaction, stamp, sweep.what, target, change.generation, ends)

    def _hide(self, target: Target, spots: list[Spot]) -> None:
        self._unpruned.drop(target)
        self._shapes.drop(spots)

    def list_thread(self, transaction: Transaction, target: Target, step: str | None = None) -> None:
        """List a thread under the standing that its rows say. `step`: nothing but this one has changed since."""
        with suppress(StoreCorrupt):  # It is listed once the thread has been rebuilt.
            rows, since = self._generations.current(transaction, target).rows, b""
            if step is not None:
                since = self._catalog.settled_below(transaction, target, steps.first_of(rows, step))
            self._catalog.set_standing(transaction, target, standing_of(rows, since=since))

            self._catalog.set_asking(transaction, target, is_asking(rows))

    def _look(self, transaction: Transaction, target: Target, *, touches: bool) -> None:
        """List a thread as one that asks, or not any more, if a change may have altered that."""
        if touches or self._catalog.is_asking(transaction, target):
            # Once, after the last of them: each look after a label that goes would pass all that went before.
            transaction.when_changed(target, partial(self._list_asking, transaction, target))

    def _list_asking(self, transaction: Transaction, target: Target) -> None:
        with suppress(StoreCorrupt):  # As in `list_thread`.
            self._catalog.set_asking(transaction, target, is_asking(self._generations.current(transaction, target).rows))

    def may_have_pruned(self, rows: Rows, target: Target) -> bool:
        """Whether checkpoints of a thread may have been pruned; `rows` are the thread's."""
        if self._unpruned.holds(target):
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
        if not self._unmarked.holds(target):
            mark = labels.marked(rows)
            if mark is None:
                self._unmarked.put(target)
            elif not mark.over and mark.fence > ended:
                raise UnderLease(target, mark)

    def check(self, change: Mutation) -> None:
        """Check a peer's deletion.

        Raises:
            BadOperation: it ends another generation than the one it belongs to, or the last possible one.
        """
        if not change.generation == cast(deletion.Delete, change.change).generation < deletion.GENERATIONS_MAX - 1:
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


def _at_once_and_later(transaction: Transaction, drop: Callable[[], None]) -> None:
    """Drop something from memory now, and again once the write is made: a read in between may have put it there."""
    drop()
    transaction.when_written(drop)
