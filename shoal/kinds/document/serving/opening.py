"""A stored document becomes a live one, some updates at a time; and many of its updates become one (compaction). Long edits
are made on a copy before.

It decides also which generation an edit belongs to, which Yjs clients may no longer edit, and when a document cannot be built
yet.

Laws:
- Between two steps the document may move. What was built is used only if it holds what storage
  holds: updates that came above what was read are read too; anything else that came makes it void.
- An edit that names its generation is written to that one or not at all: a client
  that was away does not restore deleted content.
- A standard Yjs client names none. The clients that edited an ended generation are
  known by their ids, the latest `DOCUMENT_DEAD_CLIENTS_MAX` of them, and rejected.
- A compaction is an operation like any other: two nodes may compact at once.
- A compaction takes a bounded number of updates, the oldest first. Updates younger than
  `document_history_s` stay as they are, unless a request asks for them.
- Updates are merged some at a time, before the operation is decided; others get a turn in between. If another
  compaction came meanwhile, the operation takes no more updates than one such step, and says that there are more.
- A document with a gap is never shown, and nothing is written to it.

Long edits are made before they are decided: on a copy, in steps, so that none of them holds the loop for long.

An edit of thousands of values takes the engine and its checks a tenth of a second: it is put into a copy, the update is read,
and its place is found. All of that follows from the request and the document alone.

Laws:
- What was made is used for the very request, and only if the document has taken nothing since; else it is made anew.
- A draft writes nothing and raises nothing: whoever carries out the request says what is wrong with it.
- A request that never comes leaves a draft of the last `_KEPT_MAX`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any, Generic, TypeVar

from shoal.config import Config
from shoal.crdt.applier import Blobs
from shoal.crdt.deletion import Delete
from shoal.crdt.dot import COUNTER_BITS, VersionVector
from shoal.crdt.rows import Rows
from shoal.errors import CatchingUp, GenerationEnded, InvalidInput, NotFound, SessionBehind, ShoalError, StoreCorrupt
from shoal.kinds.document.state import compaction, document, editing, genesis, patch, yjs
from shoal.kinds.document.state.compaction import Coverage, Cut
from shoal.kinds.document.state.editing import Edited, Editor
from shoal.kinds.document.state.genesis import Genesis
from shoal.kinds.document.state.live import EMPTY, Building, Checked, LiveDocument
from shoal.kinds.document.state.readiness import parts
from shoal.names import check_name
from shoal.node.catalog import Catalog
from shoal.node.collection.entries import Generations
from shoal.node.handler import Checks, Memory, Place, Preparation, Preparations, Readers, Target, View, WriteContext, Writers
from shoal.node.naming import check_size, expired_hlc
from shoal.node.replicas import named
from shoal.node.transaction import ObjectRows, Transaction
from shoal.node.turns import Steps, at_once, document_pace, lasting
from shoal.protocol import requests
from shoal.protocol.requests import ANY, Compact, Compacted
from shoal.records import NamedTuple

ROOTS_MAX = 256  # Root types of one document.
DOCUMENT_DEAD_CLIENTS_MAX = 4096  # Yjs clients of deleted generations, which are refused: the latest.


class OpenDocument:
    """A live document, and how far its snapshot is behind."""

    __slots__ = ("counted", "live", "snapshot_bytes", "updates_since")

    def __init__(self, live: LiveDocument, *, snapshot_bytes: int, updates_since: int) -> None:
        self.live = live
        self.counted = 0  # Bytes, in the cache's sum.
        self.snapshot_bytes = snapshot_bytes
        self.updates_since = updates_since


class Opening:
    """A live document in the making. `place` gives its rows as they are now."""

    def __init__(self, place: Callable[[], Place], config: Config) -> None:
        self.is_void = False
        self._place = place
        self._config = config
        self._pace = document_pace()
        self._read_to = b""  # A position: what comes at or below it is missed.

    def meet(self, position: bytes) -> None:
        """Take note of an update that comes meanwhile."""
        self.is_void = self.is_void or position <= self._read_to

    def steps(self) -> Steps[OpenDocument | None]:
        """Returns None if the document moved meanwhile. What a single step can read is read in one.

        Raises:
            CatchingUp: a part of it is still on its way here.
            StoreCorrupt: it cannot be built.
        """
        begun = self._place()
        check_whole(begun.rows, begun.target)
        stored = begun.transaction.get(begun.snapshot_key)
        covered = compaction.covered(begun.rows)
        snapshot = document.Snapshot.unpack(stored)
        building, count = Building(), 0
        step_bytes = min(self._pace.bytes, self._pace.whole)
        if snapshot is None:
            for each in compaction.standing(begun.rows):
                count += 1
                for part in parts(each.merged, self._pace, whole_max=self._pace.whole):
                    building.add([part])
                    if len(each.merged) > step_bytes:
                        yield
        else:
            for part in parts(snapshot.update, self._pace, whole_max=self._pace.whole):
                building.add([part])
                if len(snapshot.update) > step_bytes:
                    yield
            self._read_to = snapshot.position
        for page in document.pages(lambda: self._place().rows, self._pace, after=self._read_to or None):
            self._read_to = page[-1][0]  # Before others get a turn: what comes below is not read any more.
            short: list[bytes] = []
            for _, update in page:
                if len(update) <= self._pace.whole:
                    short.append(update)
                    continue
                building.add(short)
                short.clear()
                for part in parts(update, self._pace, whole_max=self._pace.whole):
                    building.add([part])
                    yield
            building.add(short)
            count += len(page)
            if self._pace.is_full(page):
                yield
        place = self._place()
        # A sweep takes a snapshot before the updates that it lacks, and no update that no compaction covers.
        if (
            self.is_void
            or place.rows.key(b"") != begun.rows.key(b"")
            or place.transaction.get(place.snapshot_key) != stored
            or compaction.covered(place.rows) != covered
            or compaction.has_gap(place.rows)
        ):
            return None
        live = LiveDocument(
            bytes_max=self._config.document_bytes_max,
            roots_max=ROOTS_MAX,
            built=building,
            updates=[document.withdrawn(place.rows)],
            roots=document.roots(place.rows),
            declared=document.declared_roots(place.rows),
        )
        return OpenDocument(live, snapshot_bytes=len(EMPTY if snapshot is None else snapshot.update), updates_since=count)


class DocumentGenerations:
    """The generations of documents, with the check that an edit belongs to the current one."""

    def __init__(self, generations: Generations) -> None:
        self._generations = generations

    def number(self, transaction: Transaction, target: Target) -> int:
        """The number of the document's current generation."""
        return self._generations.current(transaction, target).number

    def ending(self, transaction: Transaction, target: Target, clients: Iterable[int]) -> Delete:
        """The deletion of the current generation, which these clients edited."""
        last = self._generations.last(transaction, target)
        dead = () if last is None else last.clients
        named = list(dict.fromkeys([*dead, *clients]))[-DOCUMENT_DEAD_CLIENTS_MAX:]
        return Delete(self.number(transaction, target), named)

    def check(
        self,
        transaction: Transaction,
        target: Target,
        generation: int,
        updates: Sequence[bytes],
        *,
        structs_max: int = yjs.STRUCTS_MAX,
    ) -> None:
        """Check that updates, each of at most so many items, belong to the current generation. `generation` is the client's, or
        `ANY`.

        Raises:
            GenerationEnded: that generation has ended, or a client that edited an ended one made an update.
            SessionBehind: that generation has not arrived here yet.
            InvalidValue: an update is not a Yjs update.
            TooLarge: an update has more items.
        """
        current = self.number(transaction, target)
        if generation not in (ANY, current):
            raise _ended(target, current) if generation < current else _behind(target)
        if not current or not updates:
            return
        last = self._generations.last(transaction, target)
        assert last is not None
        dead = frozenset(last.clients)
        for update in updates:
            if not dead.isdisjoint(yjs.parse(update, structs_max=structs_max).structs):
                raise _ended(target, current)


def _ended(target: Target, current: int) -> GenerationEnded:
    return GenerationEnded(
        f"document {target.name!r} of space {target.space!r} was deleted since this client opened it. Nothing was written. "
        "The client keeps its edits; open the document again to begin from the current content.",
        generation=current,
    )


def _behind(target: Target) -> SessionBehind:
    return SessionBehind(
        f"this node does not know yet that document {target.name!r} was deleted. Nothing was written. "
        "Try again soon, or on another node."
    )


DOCUMENT_BYTES_PER_UPDATE = 256  # A large document is written anew only after an update for so many of its bytes.
DOCUMENT_COMPACT_UPDATES_MAX = 65_536  # Updates merged by one compaction.

_AGE_MS_MAX = 2**53
_FOLDED_MAX = 4  # Merged updates that wait for their requests: a request that is refused leaves one.


class Folded(NamedTuple):
    """A merged update, ready to be written."""

    place: bytes  # The key prefix of the object's rows: another generation has another one.
    before: Coverage  # Covered by other compactions when it was made; if that has grown, it may lack something.
    cut: Cut
    merged: bytes  # Empty if it is not due.


class Compactions(Memory):
    """The handler of compactions. `shoal.node.collection.garbage` sweeps the updates that they cover."""

    def __init__(self, config: Config, now_ms: Callable[[], int], catalog: Catalog) -> None:
        self._config = config
        self._now_ms = now_ms
        self._catalog = catalog
        self._pace = document_pace()
        self.preparations: Preparations = {Compact: self.prepare}
        self._folded: dict[Compact, Folded] = {}  # For requests that are about to be issued.
        self.checks: Checks = {Compact: self._check}
        self.writers: Writers = {Compact: self._compact}
        self.readers: Readers = {}

    def forget_partition(self, number: int) -> None:
        """Drop all merged updates that wait for their requests."""
        self._folded.clear()

    def _check(self, request: Compact) -> None:
        check_name("document", request.document)
        if not 0 <= request.older_than_ms < _AGE_MS_MAX:
            raise InvalidInput(f"older_than must not be negative; got {request.older_than_ms} ms. Nothing was written.")

    def prepare(self, _target: Target, view: Callable[[], View], request: Compact) -> Preparation:
        """Merge what a request covers, step by step, and keep it for the request."""
        with suppress(StoreCorrupt):  # The writer meets it too, where it can be repaired.
            if compaction.has_gap(view().rows):
                return
            most = DOCUMENT_COMPACT_UPDATES_MAX
            folded = yield from self._fold(lambda: view().rows, view().vector, request, most)
            self._folded[request] = folded
            while len(self._folded) > _FOLDED_MAX:
                self._folded.pop(next(iter(self._folded)))

    def _fold(
        self, rows: Callable[[], ObjectRows], context: VersionVector, request: Compact, updates_max: int
    ) -> Steps[Folded]:
        place, before = rows().key(b""), compaction.covered(rows())
        before_hlc = 1 << 64  # All that was applied, however its clocks went.
        if request.older_than_ms:
            before_hlc = max(0, self._now_ms() - request.older_than_ms) << COUNTER_BITS
        cut = yield from compaction.cut(rows, context, before_hlc=before_hlc, updates_max=updates_max, pace=self._pace)
        if not self._is_due(rows(), request, cut.updates):
            return Folded(place, before, cut, b"")
        building = Building()
        for some in compaction.content(rows, cut.coverage, pace=self._pace):
            building.add(some)
            yield
        return Folded(place, before, cut, building.snapshot())

    def _compact(self, context: WriteContext, request: Compact) -> Compacted:
        """Merge the oldest updates, if enough of them are due; else the reply counts none.

        Raises:
            NotFound: there is no such document.
            CatchingUp: this node lacks a part of it.
            TooLarge: the merged update would be over `request_bytes_max`. Nothing was written.
        """
        rows = context.rows
        if not self._catalog.lists(context.transaction, context.target):
            raise NotFound(f"space {context.target.space!r} has no document {context.target.name!r}. Nothing was written.")
        check_whole(rows, context.target)
        folded = self._folded.pop(request, None)
        if folded is None or (folded.place, folded.before) != (rows.key(b""), compaction.covered(rows)):
            folded = at_once(self._fold(lambda: rows, context.stamp.context, request, self._pace.updates))
        if not folded.merged:
            return Compacted(0, 0)
        check_size(self._config, len(folded.merged), "a compacted document")
        settled = expired_hlc(context.stamp.hlc, self._now_ms(), self._config.key_window_s)
        coverage = folded.cut.coverage.join(Coverage(settled=settled))
        change = compaction.Compact(sha256(folded.merged).digest(), coverage.pack())
        context.apply(change, Blobs(folded.merged))
        return Compacted(folded.cut.updates, len(folded.merged), folded.cut.more)

    def _is_due(self, rows: Rows, request: Compact, updates: int) -> bool:
        standing = compaction.standing(rows)
        if request.at_least <= 1:
            return updates > 0 or len(standing) > 1  # Concurrent compactions become one.
        size = sum(len(each.merged) for each in standing)
        return updates >= max(request.at_least, size // DOCUMENT_BYTES_PER_UPDATE)


class Compactor:
    """Compacts what documents ask for by themselves, one after the other; a later write asks again for what was refused."""

    def __init__(
        self,
        chores: dict[Compact, None],
        prepare: Callable[[Compact], Awaitable[None]],
        issue: Callable[[Compact], object],
    ) -> None:
        self._chores = chores
        self._prepare = prepare
        self._issue = issue
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    def stir(self) -> None:
        """Start if there is something to do. While there is not there is no task, and no timer."""
        if self._chores and self._task is None and not self._stopped:
            self._task = lasting(self._run(), "compaction of documents")

    async def stop(self) -> None:
        """Stopping twice is allowed."""
        self._stopped = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            while self._chores:
                request = next(iter(self._chores))
                await self._prepare(request)
                del self._chores[request]
                with suppress(ShoalError):
                    self._issue(request)
        finally:
            self._task = None


def check_whole(rows: Rows, target: Target) -> None:
    """Check that a document has no gap.

    Raises:
        CatchingUp: a compaction that is not here yet has erased an update.
    """
    if compaction.has_gap(rows):
        raise CatchingUp(
            f"this node lacks a part of {named(target)} and is fetching it: its disk is new, and other nodes have compacted "
            "the document since. Nothing was written. Try again soon, or on another node."
        )


_KEPT_MAX = 4
_SHORT_BYTES = 4096  # A request of so many bytes takes a few milliseconds, and is carried out as it comes.

Made = TypeVar("Made", Genesis, Edited)


class Draft(NamedTuple, Generic[Made]):
    """An edit that was made for a request."""

    request: Any
    of: tuple[object, ...]  # What it depends on.
    made: Made
    checked: Checked | None = None  # Against the document as it was then; None: there was none.


def is_long(request: object) -> bool:
    """Whether a request edits a document, and has so many bytes that it is worth a draft."""
    if isinstance(request, requests.Patch):
        return len(request.patch) > _SHORT_BYTES
    return isinstance(request, requests.Replace | requests.Begin) and len(request.content) > _SHORT_BYTES


def edit(live: LiveDocument, request: requests.Patch | requests.Replace, client_id: int) -> Edited:
    """The update that makes of the document what the request wants.

    Raises:
        ShoalError: as `editing.Editor.replace`, or `patch.patch`. The document is as it was.
    """
    if isinstance(request, requests.Patch):
        return patch.patch(live, request.patch, client_id=client_id)
    content = editing.read_content(request.content)
    return editing.on_copy(
        live, lambda doc, turn: Editor(turn=turn, walk=live.walk()).replace(doc, live.roots, content), client_id=client_id
    )


class Drafts:
    """The drafts of requests that are about to be carried out."""

    def __init__(self) -> None:
        self._begun: deque[Draft[Genesis]] = deque(maxlen=_KEPT_MAX)
        self._edited: deque[Draft[Edited]] = deque(maxlen=_KEPT_MAX)

    def beginning(self, request: requests.Replace | requests.Begin, generation: int, *, bytes_max: int) -> Preparation:
        """Make the beginning of a document that does not exist."""
        made = genesis.begin(editing.read_content(request.content), generation)
        yield
        # A document that does not exist is as any empty one.
        checked = yield from LiveDocument(bytes_max=bytes_max, roots_max=ROOTS_MAX).checking(made.update, made.roots)
        self._begun.append(Draft(request, (generation,), made, checked))
        yield

    def editing(self, request: requests.Patch | requests.Replace, live: LiveDocument, client_id: int) -> Preparation:
        """Make the edit of a document."""
        if isinstance(request, requests.Begin):
            return
        fed = live.fed
        edited = edit(live, request, client_id)
        yield
        checked = yield from live.checking(edited.update, edited.roots)
        self._edited.append(Draft(request, (live, fed, client_id), edited, checked))
        yield

    def begun(self, request: object, generation: int) -> Draft[Genesis] | None:
        """The draft for a request, if it is still what would be made."""
        return _taken(self._begun, request, (generation,))

    def edited(self, request: object, live: LiveDocument, client_id: int) -> Draft[Edited] | None:
        """The draft for a request, if it is still what would be made."""
        return _taken(self._edited, request, (live, live.fed, client_id))


def _taken(drafts: deque[Draft[Made]], request: object, of: tuple[object, ...]) -> Draft[Made] | None:
    found = next((draft for draft in drafts if draft.request is request), None)
    if found is None:
        return None
    drafts.remove(found)
    return found if all(one is other or one == other for one, other in zip(found.of, of, strict=True)) else None
