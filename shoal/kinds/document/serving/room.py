"""All that serves documents in one node, and restores the beginning of a document that a client has seen on a node whose disk
is lost; and the past of documents. `late`, beside it, stands for it until the first request about one.

Laws:
- A lost beginning is restored as a beginning. So all nodes know it, and they all let the same one of several beginnings count.
- The client may have seen parts of it deleted; the same operation deletes these.

Moments of a document, and its content at a moment of the past.

Law: a moment is a version vector, so that it names the same updates on every node. The content at
a moment depends only on these updates, not on later ones, nor on the order in which they arrived.

The values that concurrent edits of a document overwrote, computed from the stored updates.

Law: an answer is a function of the stored updates and their positions, so replicas that hold the same answer the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from hashlib import sha256
from itertools import islice

import msgspec

from shoal import values
from shoal.config import Config
from shoal.crdt.applier import Blobs
from shoal.crdt.dot import COUNTER_BITS, Dot, VersionVector
from shoal.crdt.rows import Rows
from shoal.errors import (
    BadOperation,
    HistoryCompacted,
    InvalidInput,
    InvalidValue,
    SessionBehind,
    ShoalError,
    StoreCorrupt,
    TooLarge,
)
from shoal.kinds.document.serving.documents import Documents, check_beginning, place_of
from shoal.kinds.document.serving.opening import ROOTS_MAX, Compactions, Compactor, DocumentGenerations, check_whole
from shoal.kinds.document.state import compaction, document, genesis, yjs
from shoal.kinds.document.state.conflicts import ELEMENT, Conflicts, Overwritten
from shoal.kinds.document.state.document import Beginning
from shoal.kinds.document.state.editing import VALUES_MAX
from shoal.kinds.document.state.live import LiveDocument
from shoal.kinds.redaction.serving.redactor import DocumentGuard
from shoal.names import check_name
from shoal.node.catalog import Catalog
from shoal.node.collection.entries import Generations
from shoal.node.context import NodeContext
from shoal.node.handler import Checks, Handler, Preparations, Readers, View, WriteContext, Writers
from shoal.node.naming import check_size
from shoal.protocol import requests
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


DOCUMENT_AUTHORS_MAX = 10_000  # Authors that one answer names: a document may have been edited from many tabs.
DOCUMENT_CONFLICTS_MAX = 256  # Overwritten values reported for one document: the latest.
DOCUMENT_HISTORY_UPDATES_MAX = 65_536  # Updates from which a past state may be built.

_HLC_BYTES = 8  # At the beginning of a position.


class Snapshots:
    """The handler of `ReadMoment`, `ReadDocumentAt` and `ReadAuthors`."""

    def __init__(self, config: Config, generations: DocumentGenerations) -> None:
        self._config = config
        self._generations = generations
        self.checks: Checks = {}
        self.writers: Writers = {}
        self.readers: Readers = {
            requests.ReadMoment: self._moment,
            requests.ReadDocumentAt: self._at,
            requests.ReadAuthors: _authors,
        }

    def _moment(self, view: View, _request: requests.ReadMoment) -> requests.Moment:
        return requests.Moment(self._generations.number(view.transaction, view.target), view.vector.pack())

    def _at(self, view: View, request: requests.ReadDocumentAt) -> requests.DocumentJson:
        """The content at a moment, built from the stored updates.

        Raises:
            InvalidValue: it is not a moment.
            GenerationEnded: the document was deleted since.
            SessionBehind: this node does not hold everything that existed then.
            CatchingUp: this node lacks a part of the document.
            HistoryCompacted: a compaction has merged updates that are later than the moment.
            TooLarge: more than `DOCUMENT_HISTORY_UPDATES_MAX` updates lie before it.
        """
        self._generations.check(view.transaction, view.target, request.generation, [])
        try:
            then = VersionVector.unpack(request.vector)
        except ValueError as error:
            raise InvalidValue(
                f"this is not a moment of a document ({error}). Use the value that `snapshot` returned."
            ) from None
        if not view.vector.accepts(then):
            raise SessionBehind(
                "this node does not yet have everything that existed at that moment. Try again soon, or on another node."
            )
        check_whole(view.rows, view.target)
        covered = compaction.covered(view.rows)
        named = covered.vector.items()
        if not (covered.floor.is_reached(then) and all(then.reaches(Dot(*entry), None, view.vector) for entry in named)):
            raise HistoryCompacted(
                f"the past of document {view.target.name!r} was compacted, and that moment is before the compaction. "
                "Nothing was written. Read the current document, or take snapshots more often."
            )

        def known(position: bytes) -> bool:
            return then.reaches(document.dot_of(position), int.from_bytes(position[:_HLC_BYTES], "big"), view.vector)

        updates = [each.merged for each in compaction.standing(view.rows)]
        for position, update in compaction.uncovered(view.rows, covered):
            if known(position):
                updates.append(update)
            if len(updates) > DOCUMENT_HISTORY_UPDATES_MAX:
                raise TooLarge(
                    f"more than {DOCUMENT_HISTORY_UPDATES_MAX} updates lie before that moment "
                    ", too many to build the document from. Read the current document."
                )
        updates.append(document.withdrawn(view.rows, known=known))
        roots = document.roots(view.rows)
        live = LiveDocument(bytes_max=self._config.document_bytes_max, roots_max=ROOTS_MAX, updates=updates, roots=roots)
        declared = {name: document.declared_by(view.rows, name) for name in roots}
        shown = {name for name, dots in declared.items() if any(then.reaches(dot, None, view.vector) for dot in dots)}
        return requests.DocumentJson(msgspec.json.encode({k: v for k, v in live.to_json().items() if k in shown}))


_COMPACTED = bytes(8)
"""A prefix of a compaction's position, which orders it before the updates that no compaction covers."""


class OverwrittenValues:
    """The handler of `ReadConflicts`."""

    def __init__(self) -> None:
        self.checks: Checks = {}
        self.writers: Writers = {}
        self.readers: Readers = {requests.ReadConflicts: self._read}

    def _read(self, view: View, _request: requests.ReadConflicts) -> requests.Conflicts:
        """The newest overwritten values, at most `DOCUMENT_CONFLICTS_MAX`. It reads all stored updates.

        Raises:
            CatchingUp: this node lacks a part of the document.
            StoreCorrupt: an update cannot be read.
        """
        check_whole(view.rows, view.target)
        conflicts = Conflicts()
        try:
            for each in compaction.standing(view.rows):
                conflicts.add(each.merged, _COMPACTED + each.position)
            for position, update in compaction.uncovered(view.rows, compaction.covered(view.rows)):
                conflicts.add(update, position)
        except ShoalError as error:
            raise StoreCorrupt(f"a document's update cannot be read: {error.message} Run `shoal verify`.") from None
        # The id decides between values at one position, so that all replicas list them in one order.
        lost = document.lost_geneses(view.rows)
        ended = {each.client for each in lost}
        overwritten = [each for each in conflicts.overwritten() if each.lost_client not in ended and each.path[0] != ELEMENT]
        overwritten += [_beginning(view.rows, each) for each in lost]
        found = sorted(overwritten, key=lambda lost: (lost.at, lost.id), reverse=True)
        authors = document.authors(view.rows)
        most = DOCUMENT_CONFLICTS_MAX
        return requests.Conflicts([_shown(lost, authors) for lost in found[:most]], more=len(found) > most)


def _authors(view: View, _request: requests.ReadAuthors) -> requests.DocumentAuthors:
    found = document.authors(view.rows)
    authors = [requests.DocumentAuthor(*each) for each in islice(found.items(), DOCUMENT_AUTHORS_MAX)]
    return requests.DocumentAuthors(authors, more=len(found) > len(authors))


def _beginning(rows: Rows, lost: Beginning) -> Overwritten:
    """The whole content of a beginning that does not count."""
    at = lost.positions[0]
    update = next(document.updates(rows, at=at))[1]
    began = LiveDocument(bytes_max=len(update), roots_max=1, updates=[update], roots=document.roots(rows))
    content = {name: value for name, value in began.to_py().items() if value}
    return Overwritten((), content, lost.client, None, 0, at, (lost.client, 0))


def _shown(lost: Overwritten, authors: dict[int, str]) -> requests.Overwritten:
    return requests.Overwritten(
        list(lost.path),
        values.encode(lost.lost),
        authors.get(lost.lost_client, ""),
        values.encode(lost.stands),
        authors.get(lost.stands_client, ""),
        int.from_bytes(lost.at.removeprefix(_COMPACTED)[:8], "big") >> COUNTER_BITS,
    )
