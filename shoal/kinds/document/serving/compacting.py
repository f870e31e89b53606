"""When updates of a document become one; and the error for a document that cannot be built yet.

Laws:
- A compaction is an operation like any other: two nodes may compact at once.
- A compaction takes a bounded number of updates, the oldest first. Updates younger than
  `document_history_s` stay as they are, unless a request asks for them.
- Updates are merged some at a time, before the operation is decided; others get a turn in between. If another
  compaction came meanwhile, the operation takes no more updates than one such step, and says that there are more.
- A document with a gap is never shown, and nothing is written to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from hashlib import sha256

from shoal.config import Config
from shoal.crdt.dot import COUNTER_BITS, VersionVector
from shoal.crdt.rows import Rows
from shoal.errors import CatchingUp, InvalidInput, NotFound, ShoalError, StoreCorrupt
from shoal.kinds.document.state import compaction
from shoal.kinds.document.state.compaction import Coverage, Cut
from shoal.kinds.document.state.live import Building
from shoal.names import check_name
from shoal.node.catalog import Catalog
from shoal.node.handler import Checks, Memory, Preparation, Preparations, Readers, Target, View, WriteContext, Writers
from shoal.node.naming import check_size, expired_hlc
from shoal.node.replicas import named
from shoal.node.transaction import Blobs, ObjectRows
from shoal.node.turns import Steps, at_once, document_pace, lasting
from shoal.protocol.requests import Compact, Compacted
from shoal.records import NamedTuple

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
