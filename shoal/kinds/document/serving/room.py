"""All that serves documents in one node, and restores the beginning of a document that a client has seen on a node whose disk
is lost. `late`, beside it, stands for it until the first request about a document.

Laws:
- A lost beginning is restored as a beginning. So all nodes know it, and they all let the same one of several beginnings count.
- The client may have seen parts of it deleted; the same operation deletes these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from hashlib import sha256

from shoal.config import Config
from shoal.crdt.applier import Blobs
from shoal.errors import BadOperation, InvalidInput, TooLarge
from shoal.kinds.document.serving.documents import Documents, check_beginning, place_of
from shoal.kinds.document.serving.opening import ROOTS_MAX, Compactions, Compactor, DocumentGenerations
from shoal.kinds.document.serving.snapshots import OverwrittenValues, Snapshots
from shoal.kinds.document.state import document, genesis, yjs
from shoal.kinds.document.state.editing import VALUES_MAX
from shoal.kinds.document.state.live import LiveDocument
from shoal.kinds.redaction.serving.redactor import DocumentGuard
from shoal.names import check_name
from shoal.node.catalog import Catalog
from shoal.node.collection.entries import Generations
from shoal.node.context import NodeContext
from shoal.node.handler import Checks, Handler, Preparations, Readers, WriteContext, Writers
from shoal.node.naming import check_size
from shoal.protocol.requests import Begun, Compact, RestoreBeginning

DOCUMENT_BEGINNINGS_MAX = 64  # Beginnings of one document, begun on several nodes at once; beyond this a client adds no other.


class Restoring:
    """The handler of `RestoreBeginning`."""

    def __init__(self, config: Config, documents: Documents, generations: DocumentGenerations) -> None:
        self._config = config
        self._documents = documents
        self._generations = generations
        self.checks: Checks = {RestoreBeginning: self._check}
        self.writers: Writers = {RestoreBeginning: self._restore}
        self.readers: Readers = {}

    def _check(self, request: RestoreBeginning) -> None:
        check_name("document", request.document)
        check_size(self._config, len(request.update) + len(request.deletions), "an update")
        check_beginning(request.digest)
        if request.author:
            check_name("author", request.author)
        try:
            # A node makes one of at most so many values; each may be an item, and stand in one.
            genesis.check(request.digest, yjs.parse(request.update, structs_max=2 * VALUES_MAX))
        except BadOperation:
            raise InvalidInput("the update is not the initial content with this hash. Nothing was written.") from None
        deletions = yjs.parse(request.deletions, structs_max=2 * VALUES_MAX)
        client = genesis.client_of(request.digest)
        if deletions.structs or any(deleted != client for deleted, _, _ in deletions.deletes):
            raise InvalidInput("the deletions contain more than the deletions of the initial content. Nothing was written.")

    def _restore(self, context: WriteContext, request: RestoreBeginning) -> Begun:
        """Store the beginning, unless this node has it.

        Raises:
            GenerationEnded, SessionBehind: it belongs to another generation of the document.
            NotReady, InvalidValue, InvalidName, RootConflict, TooLarge: no document can begin with it, or this one has
                no room for it. Nothing was written.
        """
        updates, most = [request.update], 2 * VALUES_MAX
        self._generations.check(context.transaction, context.target, request.generation, updates, structs_max=most)
        known = document.begun_with(context.rows)
        if request.digest in known:
            return Begun(created=False)
        most = DOCUMENT_BEGINNINGS_MAX
        if len(known) >= most:
            raise TooLarge(f"a document has at most {most} initial contents. Nothing was written.")
        place = place_of(context)
        self._check_content(self._documents.live(place), request)
        client = genesis.client_of(request.digest)
        change = document.Update(
            sha256(request.update).digest(),
            request.roots,
            {client: request.author} if request.author else {},
            genesis=request.digest,
        )
        context.apply(change, Blobs(request.update))
        context.tell(self._documents.told_update(place, change, request.update))
        if yjs.parse(request.deletions).deletes:
            context.apply(document.Update(sha256(request.deletions).digest()), Blobs(request.deletions))
        self._documents.lose(place)  # Another beginning may count now.
        return Begun(created=True)

    def _check_content(self, live: LiveDocument, request: RestoreBeginning) -> None:
        """Check the beginning as a document of its own, because the kinds of its roots may differ from those here."""
        alone = LiveDocument(bytes_max=self._config.document_bytes_max, roots_max=ROOTS_MAX)
        alone.integrate(request.update, request.roots)
        alone.integrate(request.deletions, {})
        if (guard := self._documents.guard(request.space)) is not None:
            guard.check(Counter(), guard.counted(alone.to_json(), alone.size))
        live.check_room(len(request.update) + len(request.deletions), request.roots)


class DocumentRoom:
    """The handlers of documents as one, with the live replicas, and what compacts them."""

    def __init__(
        self,
        context: NodeContext,
        catalog: Catalog,
        generations: Generations,
        prepare: Callable[[Compact], Awaitable[None]],
        issue: Callable[[Compact], object],
        guard: Callable[[str], DocumentGuard | None],
    ) -> None:
        config, own = context.config, DocumentGenerations(generations)
        self.documents = Documents(config, catalog, own, guard, lambda: context.incarnation.current)
        self.compactions = Compactions(config, context.environment.now_ms, catalog)
        self.compactor = Compactor(self.documents.chores, prepare=prepare, issue=issue)
        handlers: list[Handler] = [
            self.documents,
            self.compactions,
            Restoring(config, self.documents, own),
            OverwrittenValues(),
            Snapshots(config, own),
        ]
        self.checks: Checks = {kind: check for each in handlers for kind, check in each.checks.items()}
        self.writers: Writers = {kind: writer for each in handlers for kind, writer in each.writers.items()}
        self.readers: Readers = {kind: reader for each in handlers for kind, reader in each.readers.items()}
        self.preparations: Preparations = {**self.documents.preparations, **self.compactions.preparations}
