"""Open a stored document in steps, and decide which edits still belong to its generation.

A stored document becomes a live one, some updates at a time.

Law: between two steps the document may move. What was built is used only if it holds what storage
holds: updates that came above what was read are read too; anything else that came makes it void.

The generation that an edit of a document belongs to, and the Yjs clients that may no longer edit.

Laws:
- An edit that names its generation is written to that one or not at all: a client
  that was away does not restore deleted content.
- A standard Yjs client names none. The clients that edited an ended generation are
  known by their ids, the latest `DOCUMENT_DEAD_CLIENTS_MAX` of them, and rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from shoal.config import Config
from shoal.crdt.deletion import Delete
from shoal.errors import GenerationEnded, SessionBehind
from shoal.kinds.document.serving.compacting import check_whole
from shoal.kinds.document.state import compaction, document, yjs
from shoal.kinds.document.state.live import EMPTY, Building, LiveDocument
from shoal.kinds.document.state.readiness import parts
from shoal.node.collection.entries import Generations
from shoal.node.handler import Place, Target
from shoal.node.transaction import Transaction
from shoal.node.turns import Steps, document_pace
from shoal.protocol.requests import ANY

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
