"""A document's beginning that a client brings back: it has seen it on a node whose disk is gone.

Laws:
- It is restored as what it was. So all nodes know of it, and of several beginnings they let the same one count.
- What a client holds of it may lack what was deleted since; that is deleted in the same operation.
"""

from __future__ import annotations

from hashlib import sha256

from shoal.config import Config
from shoal.crdt.document import document, genesis, yjs
from shoal.crdt.document.live import LiveDocument
from shoal.errors import BadOperation, InvalidInput, TooLarge
from shoal.names import check_name
from shoal.node.blobs import Blobs
from shoal.node.checks import check_size
from shoal.node.document.documents import Documents, check_beginning, place_of
from shoal.node.document.generations import DocumentGenerations
from shoal.node.handler import Checks, Readers, WriteContext, Writers
from shoal.protocol.requests import Begun, RestoreBeginning


class Restoring:
    """The handler."""

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
            genesis.check(request.digest, request.update)
        except BadOperation:
            raise InvalidInput("the update is not the initial content with this hash. Nothing was written.") from None
        deletions = yjs.parse(request.deletions)
        client = genesis.client_of(request.digest)
        if deletions.structs or any(deleted != client for deleted, _, _ in deletions.deletes):
            raise InvalidInput("the deletions contain more than the deletions of the initial content. Nothing was written.")

    def _restore(self, context: WriteContext, request: RestoreBeginning) -> Begun:
        """
        Raises:
            GenerationEnded, SessionBehind: the document that was begun is not this one.
            NotReady, InvalidValue, InvalidName, RootConflict, TooLarge: it could begin no document, or this one has no
                room for it. Nothing was written.
        """
        self._generations.check(context.transaction, context.target, request.generation, [request.update])
        known = document.begun_with(context.rows)
        if request.digest in known:
            return Begun(created=False)
        most = self._config.document_beginnings_max
        if len(known) >= most:
            raise TooLarge(f"a document has at most {most} initial contents (document_beginnings_max). Nothing was written.")
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
        context.tell(self._documents.told(place, change, request.update))
        if yjs.parse(request.deletions).deletes:
            context.apply(document.Update(sha256(request.deletions).digest()), Blobs(request.deletions))
        self._documents.lose(place)  # Another beginning may count now.
        return Begun(created=True)

    def _check_content(self, live: LiveDocument, request: RestoreBeginning) -> None:
        """Hold the beginning to what holds of a whole document: the kinds of its roots may be others than here."""
        alone = LiveDocument(bytes_max=self._config.document_bytes_max, roots_max=self._config.roots_max)
        alone.integrate(request.update, request.roots)
        alone.integrate(request.deletions, {})
        live.check_room(len(request.update) + len(request.deletions), request.roots)
