"""Import and make what serves documents with the first request about one, so that a node without documents opens sooner.

The Yjs engine, and all that is built on it, took a fifth of the time in which a store is opened, and many stores have no
document.

Law: of this package only this module and `generations` are imported with a node. A node that is served makes the `room` before
it is ready, so that no client waits for it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from shoal.kinds.document import requests as documents
from shoal.kinds.redaction.serving.redactor import DocumentGuard
from shoal.node.catalog import Catalog
from shoal.node.collection.entries import Generations
from shoal.node.context import NodeContext
from shoal.node.handler import Applied, Checks, Memory, Place, Preparation, Preparations, Readers, Target, View, Writers
from shoal.node.transaction import Transaction
from shoal.protocol.requests import Compact, Edit, Follow, ObjectRead, ObjectWrite
from shoal.protocol.requests.families import operations

if TYPE_CHECKING:
    from shoal.kinds.document.serving.room import DocumentRoom

_ABOUT_DOCUMENTS = [kind for kind in operations() if kind.__module__ == documents.__name__]


class LateDocuments(Memory):
    """The handler of all requests about documents, which hands each to the `room`."""

    is_within = True

    def __init__(
        self,
        context: NodeContext,
        *,
        catalog: Catalog,
        generations: Generations,
        prepare: Callable[[Compact], Awaitable[None]],
        issue: Callable[[Compact], object],
        guard: Callable[[str], DocumentGuard | None],
    ) -> None:
        self._parts = (context, catalog, generations, prepare, issue, guard)
        writes = [kind for kind in _ABOUT_DOCUMENTS if issubclass(kind, ObjectWrite)]
        reads = [kind for kind in _ABOUT_DOCUMENTS if issubclass(kind, ObjectRead)]
        self.checks: Checks = dict.fromkeys(writes, lambda request: self.room.checks[type(request)](request))
        self.writers: Writers = dict.fromkeys(writes, lambda at, request: self.room.writers[type(request)](at, request))
        self.readers: Readers = dict.fromkeys(reads, lambda view, request: self.room.readers[type(request)](view, request))
        self.preparations: Preparations = dict.fromkeys([*_ABOUT_DOCUMENTS, Follow], self._prepare)

    @cached_property
    def room(self) -> DocumentRoom:
        """The room that serves documents."""
        from shoal.kinds.document.serving.room import DocumentRoom

        return DocumentRoom(*self._parts)

    def _prepare(self, target: Target, view: Callable[[], View], request: Any) -> Preparation | None:
        prepare = self.room.preparations.get(type(request))
        return None if prepare is None else prepare(target, view, request)

    @property
    def _is_made(self) -> bool:
        return "room" in self.__dict__

    def stir(self) -> None:
        """Start the compactions that writes and reads found due, if there are some."""
        if self._is_made:
            self.room.compactor.stir()

    def applied(self, place: Place, applied: Applied) -> None:
        """Follow a peer's update; drop the live replica if a compaction of a peer filled a gap (`Documents.applied`)."""
        self.room.documents.applied(place, applied)

    def told(self, place: Place, applied: Applied) -> Edit | None:
        """The push to followers for a peer's change; None if they need not know, or cannot while the document has a gap
        (`Documents.told`).
        """
        return self.room.documents.told(place, applied)

    def ended(self, transaction: Transaction, target: Target) -> None:
        """Drop the live replica and the snapshot, because the document is deleted (`Documents.ended`)."""
        self.room.documents.ended(transaction, target)

    def replaced(self, transaction: Transaction, target: Target) -> None:
        """Drop the live replica and the snapshot, because the document's rows are replaced (`Documents.replaced`)."""
        self.room.documents.replaced(transaction, target)

    def forget_partition(self, number: int) -> None:
        """Drop what memory holds of a partition's documents, because its rows were replaced."""
        if self._is_made:
            self.room.compactions.forget_partition(number)
            self.room.documents.forget_partition(number)

    async def stop(self) -> None:
        """Stop compacting. Stopping twice is allowed."""
        if self._is_made:
            await self.room.compactor.stop()
