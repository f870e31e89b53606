"""Documents over storage: a bounded cache of live replicas, and snapshots that make opening cheap.

Laws:
- A live replica equals the stored document, or it is dropped: an update that could
  not be written is never shown.
- A snapshot is derived: it covers every update up to its position, is written in
  the batch of the update that made it due, and may be deleted at any time. An
  update from a peer at or below its position deletes it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import sha256
from typing import Any

import msgspec

from shoal.config import Config
from shoal.crdt.applier import Blobs, is_gone
from shoal.crdt.dot import Origin
from shoal.crdt.rows import POSITION_BYTES, Rows, Stamp
from shoal.errors import DocumentChanged, InvalidInput, NotFound, NotReady, ShoalError, TooLarge
from shoal.kinds.document.serving import opening
from shoal.kinds.document.serving.opening import DOCUMENT_BYTES_PER_UPDATE, DocumentGenerations, OpenDocument, Opening
from shoal.kinds.document.state import compaction, document, editing, genesis, repeats, yjs
from shoal.kinds.document.state.live import Checked, LiveDocument, merged
from shoal.kinds.redaction.serving.redactor import DocumentGuard
from shoal.names import check_name, check_names
from shoal.node.catalog import Catalog
from shoal.node.handler import (
    Applied,
    Checks,
    Memory,
    Place,
    Preparation,
    Preparations,
    Readers,
    Target,
    View,
    WriteContext,
    Writers,
)
from shoal.node.naming import check_size
from shoal.node.transaction import Transaction
from shoal.node.turns import at_once, document_pace
from shoal.protocol import requests
from shoal.protocol.requests import RootKind
from shoal.records import NamedTuple
from shoal.storage import keys

UPDATE_AUTHORS_MAX = 1024  # Authors named by one update of a document.

_CHORES_MAX = 1024
_STEP_COUNTED = 8  # Times as many bytes as are counted in one step, updates of documents are merged in one.
_LOOKED_AT_MAX = 4096  # Bytes of updates that are looked at to know whether they need the counts.
_OPENINGS_MAX = 3  # Of a document that moves meanwhile.


def place_of(at: WriteContext | View) -> Place:
    """The document that a write or a read is about."""
    return Place(at.transaction, at.rows, at.target)


class _Authored(NamedTuple):
    update: bytes
    roots: dict[str, RootKind]
    authors: dict[int, str]


class Documents(Memory):
    """The handler of documents, with their live replicas.

    `chores` are compactions that writes and reads found due; the database issues them. `guard` gives what looks at the
    documents of a space whose writes are redacted; an edit cannot be, so it is refused. `origin` is that of this opening, once
    it has one.
    """

    def __init__(
        self,
        config: Config,
        catalog: Catalog,
        generations: DocumentGenerations,
        guard: Callable[[str], DocumentGuard | None],
        origin: Callable[[], Origin | None],
    ) -> None:
        self._config = config
        self._origin = origin
        self.guard = guard
        self._catalog = catalog
        self._generations = generations
        self.checks: Checks = {
            requests.Update: self._check_update,
            requests.Updates: self._check_updates,
            requests.Patch: self._check_patch,
            requests.Replace: self._check_replace,
            requests.DeleteDocument: self._check_delete,
            requests.Begin: self._check_begin,
        }
        self.writers: Writers = {
            requests.Update: self._update,
            requests.Updates: self._updates,
            requests.Patch: self._patch,
            requests.Replace: self._replace,
            requests.DeleteDocument: self._delete,
            requests.Begin: self._begin,
        }
        self.readers: Readers = {requests.ReadDocument: self._read, requests.ReadDocumentJson: self._read_json}
        on_live = (
            *(requests.Update, requests.Updates, requests.Patch, requests.Replace, requests.DeleteDocument),
            *(requests.RestoreBeginning, requests.ReadDocument, requests.ReadDocumentJson, requests.Follow),
        )
        self.preparations: Preparations = dict.fromkeys(on_live, self._prepare)
        self.chores: dict[requests.Compact, None] = {}  # One that is left out is noted again later.
        self._open: OrderedDict[bytes, OpenDocument] = OrderedDict()
        self._bytes = 0  # The sum of their `counted`.
        self._opening: dict[bytes, Opening] = {}
        self._drafts = opening.Drafts()

    # ── writes ────────────────────────────────────────────────────────────────

    def _check_update(self, request: requests.Update) -> None:
        check_name("document", request.document)
        check_size(self._config, len(request.update), "an update")
        check_beginning(request.beginning)
        self._check_authors(request.authors)

    def _check_authors(self, authors: Mapping[int, str]) -> None:
        check_names("author", authors.values())
        if any(not 0 <= client <= yjs.CLIENT_MAX for client in authors):
            raise InvalidInput("an author's Yjs client id has at most 53 bits. Nothing was written.")
        if len(authors) > UPDATE_AUTHORS_MAX:
            raise TooLarge(f"an update names at most {UPDATE_AUTHORS_MAX} authors. Nothing was written.")

    def _check_updates(self, request: requests.Updates) -> None:
        check_name("document", request.document)
        check_size(self._config, sum(map(len, request.updates)), "updates")
        self._check_authors(request.authors)

    def _check_patch(self, request: requests.Patch) -> None:
        self._check_edit(request, len(request.patch))

    def _check_replace(self, request: requests.Replace) -> None:
        self._check_edit(request, len(request.content))

    def _check_begin(self, request: requests.Begin) -> None:
        self._check_edit(request, len(request.content))

    def _check_edit(self, request: requests.Patch | requests.Replace | requests.Begin, size: int) -> None:
        check_name("document", request.document)
        check_size(self._config, size, "an update")
        if request.author:
            check_name("author", request.author)

    def _check_delete(self, request: requests.DeleteDocument) -> None:
        check_name("document", request.document)

    def _delete(self, context: WriteContext, request: requests.DeleteDocument) -> requests.Deleted:
        """End the document's generation. Deleting a document that does not exist succeeds.

        Raises:
            DocumentChanged: `expect` is not its version here.
        """
        self._check_expected(context, request)
        if not self._catalog.lists(context.transaction, context.target):
            return requests.Deleted(existed=False)
        clients = self._opened(place_of(context)).live.clients
        context.end(self._generations.ending(context.transaction, context.target, clients))
        return requests.Deleted(existed=True)

    def _update(self, context: WriteContext, request: requests.Update) -> requests.Updated:
        """Take a Yjs update of a mirror.

        Raises:
            GenerationEnded, SessionBehind: the update belongs to another generation of the document.
            NotReady: this node does not have the beginning that the editor shows; or as `LiveDocument.check`.
            InvalidValue, InvalidName, RootConflict, TooLarge: as `LiveDocument.check`. Nothing was written.
        """
        self._generations.check(context.transaction, context.target, request.generation, [request.update])
        if request.beginning and not document.is_begun_with(context.rows, request.beginning):
            # The update may delete content that belongs to another beginning, which counts here.
            raise NotReady(
                "this node does not have the document's initial content that was edited. Nothing was written. Restore it first."
            )
        made = _Authored(request.update, request.roots, request.authors)
        self._integrate(context, made, structs_max=yjs.STRUCTS_MAX)
        return requests.Updated()

    def _updates(self, context: WriteContext, request: requests.Updates) -> requests.UpdatesTaken:
        """Take the updates of standard Yjs clients; the reply lists those that build on updates that are missing.

        Raises:
            GenerationEnded: a client edited a document that was deleted.
            InvalidValue, InvalidName, RootConflict, TooLarge: as `LiveDocument.integrate_all`. Nothing was written.
        """
        self._generations.check(context.transaction, context.target, requests.ANY, request.updates)
        opened = self._opened(place_of(context))
        with self._guarded(context, opened):
            together, early = opened.live.integrate_all(request.updates)
        reply = requests.UpdatesTaken([requests.Early(*each) for each in early])
        if together is None:
            return reply
        authors = {
            client: author
            for client, author in request.authors.items()
            if client in together.clients and not document.is_named(context.rows, client)
        }
        change = document.Update(sha256(together.update).digest(), authors=authors, inferred=together.inferred)
        self._put(context, opened, change, together.update)
        return reply

    def _patch(self, context: WriteContext, request: requests.Patch) -> requests.DocumentJson:
        """Apply a JSON Patch (RFC 6902).

        Raises:
            InvalidValue: it is not a JSON Patch, or an operation in it cannot be applied. Nothing was written.
            Conflict: a `test` in it failed. Nothing was written.
            DocumentChanged: `expect` is not its version here.
        """
        self._check_expected(context, request)
        return self._edited(context, request)

    def _replace(self, context: WriteContext, request: requests.Replace) -> requests.DocumentJson:
        """Edit the document so that its content becomes the given one; begin it with that if it does not exist.

        Raises:
            InvalidValue, InvalidName, RootConflict, TooLarge: as `Editor.replace`. Nothing was written.
            DocumentChanged: `expect` is not its version here.
        """
        self._check_expected(context, request)
        if not self._catalog.lists(context.transaction, context.target):
            self._begin_with(context, request)
            return _json(self._opened(place_of(context)).live)
        return self._edited(context, request)

    def _check_expected(
        self, context: WriteContext, request: requests.Patch | requests.Replace | requests.DeleteDocument
    ) -> None:
        if request.expect is None:
            return
        version = ""
        if self._catalog.lists(context.transaction, context.target):
            version = requests.document_version(_json(self._opened(place_of(context)).live).json)
        if version != request.expect:
            raise DocumentChanged(
                f"document {request.document!r} {f'has version {version}' if version else 'does not exist'}, but "
                f"{f'version {request.expect}' if request.expect else 'no document'} was expected. Nothing was written. "
                "Read it again.",
                version=version,
            )

    def _begin(self, context: WriteContext, request: requests.Begin) -> requests.Begun:
        """Begin a document, unless it exists.

        Raises:
            InvalidValue, InvalidName, TooLarge: a document cannot have this content. Nothing was written.
        """
        if self._catalog.lists(context.transaction, context.target):
            editing.read_content(request.content)
            return requests.Begun(created=False)
        self._begin_with(context, request)
        return requests.Begun(created=True)

    def _begin_with(self, context: WriteContext, request: requests.Replace | requests.Begin) -> None:
        generation = self._generations.number(context.transaction, context.target)
        drafted = self._drafts.begun(request, generation)
        made = genesis.begin(editing.read_content(request.content), generation) if drafted is None else drafted.made
        authored = _Authored(made.update, made.roots, {made.client_id: request.author} if request.author else {})
        checked = None if drafted is None or not self._opened(place_of(context)).live.is_empty else drafted.checked
        self._integrate(context, authored, made.digest, checked=checked)
        context.tell(requests.Edit(made.update, made.roots, authored.authors, named(context.rows)))

    def _edited(self, context: WriteContext, request: requests.Patch | requests.Replace) -> requests.DocumentJson:
        """Edit the document, under the Yjs client id of this origin and author; returns the new content."""
        live, author = self._opened(place_of(context)).live, request.author
        generation = self._generations.number(context.transaction, context.target)
        client_id = editing.client_of(context.stamp.dot.origin, generation, author)
        drafted = self._drafts.edited(request, live, client_id)
        edited = opening.edit(live, request, client_id) if drafted is None else drafted.made
        made = _Authored(*edited, {client_id: author} if author else {})
        attempt = None
        if (key := context.implied_key) is not None:
            attempt = repeats.attempt(key, client_id, made.update)
        self._integrate(context, made, attempt=attempt, checked=None if drafted is None else drafted.checked)
        return _json(live)

    def applied(self, place: Place, applied: Applied) -> None:
        """Follow a peer's update; drop the live replica if a compaction of a peer filled a gap."""
        if not isinstance(applied.change, document.Update):
            if applied.outcome:
                self.lose(place)
        elif place.transaction.lasts:
            self._leave(place, applied.stamp, applied.change, applied.attached)
        else:
            self.follow_update(place, applied.stamp, applied.change, applied.attached)

    def follow_update(self, place: Place, stamp: Stamp, change: document.Update, attached: Blobs) -> None:
        """Update the live replica with an update of another node, which is applied even if it breaks a bound of this node."""
        if _may_not_count(place, change, attached):
            self.lose(place)
            return
        if (under_way := self._opening.get(place.snapshot_key)) is not None:
            under_way.meet(stamp.pack_position())
        opened = self._open.get(place.snapshot_key)
        covered = place.transaction.get(place.snapshot_key)
        if covered is not None and covered[:POSITION_BYTES] >= stamp.pack_position():
            place.transaction.delete(place.snapshot_key)
            if opened is not None:
                opened.updates_since = self._due(opened)  # The next edit writes a new one.
        if opened is None:
            return
        if change.kinds or not self._merged(opened, attached.content):
            # The kind of a root may have changed.
            place.transaction.when_written(lambda: self._drop(place.snapshot_key))
        place.transaction.when_abandoned(lambda: self._drop(place.snapshot_key))

    def _leave(self, place: Place, stamp: Stamp, change: document.Update, attached: Blobs) -> None:
        """Drop the live replica once this update is written with many others: it is opened in steps at its next use."""
        transaction, key = place.transaction, place.snapshot_key
        covered = transaction.get(key)
        is_covered = covered is not None and covered[:POSITION_BYTES] >= stamp.pack_position()
        if is_covered or _may_not_count(place, change, attached):
            transaction.delete(key)
        transaction.when_written(partial(self._drop, key))

    def lose(self, place: Place) -> None:
        """Drop the live replica, because a gap appeared or was filled, or another beginning may count."""
        self.replaced(place.transaction, place.target)
        place.transaction.when_abandoned(lambda: self._drop(place.snapshot_key))

    def _merged(self, opened: OpenDocument, update: bytes) -> bool:
        try:
            if not opened.live.merge(update):
                return False
        except ShoalError:
            return False
        self._count(opened, opened.live.size)
        opened.updates_since += 1
        return True

    def _integrate(
        self,
        context: WriteContext,
        made: _Authored,
        beginning: bytes = b"",
        *,
        attempt: repeats.Attempt | None = None,
        structs_max: int = yjs.CLOCK_MAX,
        checked: Checked | None = None,
    ) -> None:
        opened = self._opened(place_of(context))
        with self._guarded(context, opened):
            opened.live.integrate(made.update, made.roots, structs_max=structs_max, checked=checked)
        declared = {name: kind for name, kind in made.roots.items() if not document.declarations(context.rows, name)}
        change = document.Update(sha256(made.update).digest(), declared, made.authors, genesis=beginning, attempt=attempt)
        self._put(context, opened, change, made.update)

    @contextmanager
    def _guarded(self, context: WriteContext, opened: OpenDocument) -> Iterator[None]:
        """Look at the document before and after an edit, if its space has rules of redaction.

        Raises:
            RedactionRefused: it would hold more of what they replace than before, or is too large to be looked through.
        """
        guard = self.guard(context.target.space)
        if guard is None:
            yield
            return
        live, key = opened.live, context.target.snapshot_key
        before = guard.counted(live.to_json(), live.size)
        context.transaction.when_abandoned(lambda: self._drop(key))
        yield
        guard.check(before, guard.counted(live.to_json(), live.size))

    def _put(self, context: WriteContext, opened: OpenDocument, change: document.Update, update: bytes) -> None:
        """Store an update that the live replica has integrated."""
        place, stamp = place_of(context), context.stamp
        place.transaction.when_abandoned(lambda: self._drop(place.snapshot_key))
        context.apply(change, Blobs(update))
        self._count(opened, opened.live.size)
        opened.updates_since += 1
        if opened.updates_since >= self._due(opened):
            snapshot = opened.live.snapshot()
            place.transaction.put(place.snapshot_key, document.Snapshot(stamp.pack_position(), snapshot).pack())
            opened.snapshot_bytes, opened.updates_since = len(snapshot), 0
            place.transaction.when_written(lambda: self._ask_compaction(place.target))

    def _due(self, opened: OpenDocument) -> int:
        return max(self._config.document_snapshot_updates, opened.snapshot_bytes // DOCUMENT_BYTES_PER_UPDATE)

    def _ask_compaction(self, target: Target) -> None:
        """Note a compaction of the old updates, which is made only if there are enough of them."""
        if len(self.chores) < _CHORES_MAX:
            older_than_ms = int(self._config.document_history_s * 1000)
            least = self._config.document_compact_updates
            self.chores[requests.Compact(target.space, target.name, older_than_ms, least)] = None

    # ── reads ─────────────────────────────────────────────────────────────────

    def _read(self, view: View, request: requests.ReadDocument) -> requests.DocumentState:
        return self.state(place_of(view), request.state)

    def follow(self, place: Place, request: requests.Follow) -> requests.DocumentState:
        """The first state that a follower gets.

        Raises:
            GenerationEnded, SessionBehind: the follower has another generation of the document.
            InvalidValue: its state is not a state vector.
        """
        self._generations.check(place.transaction, place.target, request.generation, [])
        return self.state(place, request.state)

    def _read_json(self, view: View, _request: requests.ReadDocumentJson) -> requests.DocumentJson:
        """The content as JSON.

        Raises:
            NotFound: there is no such document.
        """
        if not self._catalog.holds(view.target):
            raise NotFound(f"space {view.target.space!r} has no document {view.target.name!r}.")
        return _json(self._opened(place_of(view)).live)

    def state(self, place: Place, state: bytes) -> requests.DocumentState:
        """The updates that a client with the Yjs state vector `state` lacks, and what it must know beside them.

        Raises:
            InvalidValue: `state` is not a state vector.
        """
        live = self._opened(place).live
        generation = self._generations.number(place.transaction, place.target)
        return requests.DocumentState(
            live.update_since(state),
            dict(live.roots),
            document.authors(place.rows),
            live.state(),
            generation,
            named(place.rows),
        )

    def live(self, place: Place) -> LiveDocument:
        """The live replica. The caller must not change it."""
        return self._opened(place).live

    # ── live replicas ─────────────────────────────────────────────────────────

    @property
    def held(self) -> dict[bytes, LiveDocument]:
        """The live replicas in memory, by the keys of their snapshots."""
        return {key: opened.live for key, opened in self._open.items() if opened.live.sound}

    def _prepare(self, target: Target, view: Callable[[], View], request: object) -> Preparation | None:
        found, is_there = self._find(target.snapshot_key), self._catalog.holds(target)
        is_drafted = opening.is_long(request)
        is_ready = found is not None and not (
            found.live.is_uncounted(document_pace().bytes // _STEP_COUNTED) and _walks(request)
        )
        if not is_drafted and (is_ready or (found is None and not is_there)):
            return None
        return self._preparing(lambda: place_of(view()), request, is_drafted=is_drafted)

    def _preparing(self, place: Callable[[], Place], request: object, *, is_drafted: bool) -> Preparation:
        if self._catalog.holds(place().target):
            yield from self.opening(place)
            found = self._find(place().snapshot_key)
            if found is not None and _walks(request):
                with suppress(ShoalError):
                    yield from found.live.counting(document_pace().updates)
        if is_drafted:
            with suppress(ShoalError):  # Who carries it out says what is wrong with it.
                yield from self._drafting(place, request)

    def _drafting(self, place: Callable[[], Place], request: Any) -> Preparation:
        at = place()
        generation = self._generations.number(at.transaction, at.target)
        if not self._catalog.holds(at.target):
            if not isinstance(request, requests.Patch):
                yield from self._drafts.beginning(request, generation, bytes_max=self._config.document_bytes_max)
        elif (found := self._find(at.snapshot_key)) is not None and (origin := self._origin()) is not None:
            yield from self._drafts.editing(request, found.live, editing.client_of(origin, generation, request.author))

    def opening(self, place: Callable[[], Place]) -> Preparation:
        """Bring a document into memory, step by step. `place` gives its rows as they are now.

        Nothing is raised, and a document that moves all the time may not be there after it: its use opens it too.
        """
        key = place().snapshot_key
        with suppress(ShoalError):
            for _ in range(_OPENINGS_MAX):
                while key in self._opening:
                    yield
                if self._find(key) is not None:
                    return
                opening = self._opening[key] = Opening(place, self._config)
                try:
                    found = yield from opening.steps()
                finally:
                    del self._opening[key]
                if found is not None and key not in self._open:
                    self._keep(key, self._loaded(place().target, found))

    def _opened(self, place: Place) -> OpenDocument:
        found = self._find(place.snapshot_key)
        if found is None:
            self._drop(place.snapshot_key)
            found = self._load(place)
        self._keep(place.snapshot_key, found)
        return found

    def _find(self, snapshot_key: bytes) -> OpenDocument | None:
        found = self._open.get(snapshot_key)
        return None if found is None or not found.live.sound else found

    def _keep(self, snapshot_key: bytes, opened: OpenDocument) -> None:
        """As the one that was used last; those that were used longest ago leave if there is no room."""
        self._open[snapshot_key] = opened
        self._open.move_to_end(snapshot_key)
        self._count(opened, opened.live.size)
        while len(self._open) > self._config.document_cache_max or (
            self._bytes > self._config.document_cache_bytes and len(self._open) > 1
        ):
            self._drop(next(iter(self._open)))

    def _count(self, opened: OpenDocument, size: int) -> None:
        self._bytes += size - opened.counted
        opened.counted = size

    def _load(self, place: Place) -> OpenDocument:
        found = at_once(Opening(lambda: place, self._config).steps())
        assert found is not None  # Nothing moves within one turn.
        return self._loaded(place.target, found)

    def _loaded(self, target: Target, found: OpenDocument) -> OpenDocument:
        if found.updates_since >= self._config.document_compact_updates:
            self._ask_compaction(target)
        return found

    def told(self, place: Place, applied: Applied) -> requests.Edit | None:
        """The push to followers for a peer's change; None if they need not know, or cannot while the document has a gap."""
        if not isinstance(applied.change, document.Update):
            return self._told_whole(place) if applied.outcome else None
        return None if is_gone(applied.attached) else self.told_update(place, applied.change, applied.attached.content)

    def told_update(self, place: Place, change: document.Update, update: bytes) -> requests.Edit | None:
        """The push to followers for an applied update; None while the document has a gap."""
        if compaction.has_gap(place.rows):
            return None
        if change.genesis or (change.attempt is not None and repeats.is_repeated(place.rows, change.attempt)):
            update = merged([update, document.withdrawn(place.rows)])
        kinds = change.kinds
        if kinds:
            roots = document.roots(place.rows)  # A different declaration may count.
            kinds = {name: roots[name] for name in kinds if name in roots}
        return requests.Edit(update, kinds, change.authors, named(place.rows) if change.genesis else [])

    def _told_whole(self, place: Place) -> requests.Edit | None:
        """The push to followers once a gap is filled: the whole document. None if another gap remains."""
        if compaction.has_gap(place.rows):
            return None
        live, rows = self._load(place).live, place.rows
        return requests.Edit(live.snapshot(), document.roots(rows), document.authors(rows), named(rows))

    def forget_partition(self, number: int) -> None:
        """Drop the live replicas of a partition's documents, those in the making too, because its rows were replaced."""
        prefix = keys.rows_of(keys.SNAPSHOT, number)[0]
        for key in [key for key in self._open if key.startswith(prefix)]:
            self._drop(key)
        for key, each in self._opening.items():
            each.is_void = each.is_void or key.startswith(prefix)

    def ended(self, transaction: Transaction, target: Target) -> None:
        """Drop the live replica and the snapshot, because the document is deleted."""
        self.replaced(transaction, target)

    def replaced(self, transaction: Transaction, target: Target) -> None:
        """Drop the live replica and the snapshot, because the document's rows are replaced."""
        key = target.snapshot_key
        transaction.delete(key)
        self._drop(key)
        transaction.when_written(lambda: self._drop(key))

    def _drop(self, snapshot_key: bytes) -> None:
        if (opening := self._opening.get(snapshot_key)) is not None:
            opening.is_void = True
        opened = self._open.pop(snapshot_key, None)
        if opened is not None:
            self._count(opened, 0)


def _may_not_count(place: Place, change: document.Update, attached: Blobs) -> bool:
    """Whether an update was swept elsewhere, so that there is a gap here, or its content, or that so far, may not count."""
    is_repeated = change.attempt is not None and repeats.is_repeated(place.rows, change.attempt)
    return is_gone(attached) or bool(change.genesis) or is_repeated


def _walks(request: object) -> bool:
    """Whether a request needs the counts of a document's items: it shows or edits the content, or brings shared types."""
    updates = [request.update] if isinstance(request, requests.Update) else []
    if isinstance(request, requests.Updates):
        updates = request.updates
    if not updates:
        return isinstance(request, requests.Patch | requests.Replace | requests.ReadDocumentJson)
    if sum(map(len, updates)) > _LOOKED_AT_MAX:
        return True
    with suppress(ShoalError):  # Who takes it says what is wrong with it.
        return any(struct.shared for update in updates for structs in yjs.parse(update).structs.values() for struct in structs)
    return False


def check_beginning(digest: bytes) -> None:
    """Check the hash of a beginning; empty names none.

    Raises:
        InvalidInput: it is neither empty nor 32 bytes long.
    """
    if len(digest) not in (0, sha256().digest_size):
        raise InvalidInput("the hash of a document's beginning has 32 bytes. Nothing was written.")


def named(rows: Rows) -> list[requests.Beginning]:
    """All beginnings of a document, in the form that clients get."""
    return [requests.Beginning(digest, roots) for digest, roots in document.begun_with(rows).items()]


def _json(live: LiveDocument) -> requests.DocumentJson:
    return requests.DocumentJson(msgspec.json.encode(live.to_json()))
