"""When updates of a document become one; and the error for a document that cannot be built yet.

Laws:
- A compaction is an operation like any other: two nodes may compact at once.
- A compaction takes a bounded number of updates, the oldest first. Updates younger than
  `document_history_s` stay as they are, unless a request asks for them.
- A document with a gap is never shown, and nothing is written to it.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256

from shoal.config import Config
from shoal.crdt.clock import COUNTER_BITS
from shoal.crdt.document import compaction, document
from shoal.crdt.document.live import LiveDocument
from shoal.crdt.rows import Rows
from shoal.errors import CatchingUp, InvalidInput, NotFound
from shoal.names import check_name
from shoal.node.blobs import Blobs
from shoal.node.catalog import Catalog
from shoal.node.checks import check_size
from shoal.node.handler import Checks, Readers, WriteContext, Writers
from shoal.node.replicas import named
from shoal.node.target import Target
from shoal.protocol.requests import Compact, Compacted

# A large document is not written again for a few small edits: n bytes take at least n / 256 updates.
BYTES_PER_UPDATE = 256
_AGE_MS_MAX = 2**53


class Compactions:
    """The handler of compactions. `shoal.node.collection.garbage` sweeps the updates that they cover."""

    def __init__(self, config: Config, now_ms: Callable[[], int], catalog: Catalog) -> None:
        self._config = config
        self._now_ms = now_ms
        self._catalog = catalog
        self.checks: Checks = {Compact: self._check}
        self.writers: Writers = {Compact: self._compact}
        self.readers: Readers = {}

    def _check(self, request: Compact) -> None:
        check_name("document", request.document)
        if not 0 <= request.older_than_ms < _AGE_MS_MAX:
            raise InvalidInput(f"older_than must not be negative; got {request.older_than_ms} ms. Nothing was written.")

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
        before_hlc = context.stamp.hlc  # After all that was applied, because hybrid times follow causality.
        if request.older_than_ms:
            before_hlc = max(0, self._now_ms() - request.older_than_ms) << COUNTER_BITS
        cut = compaction.cut(rows, before_hlc=before_hlc, updates_max=self._config.document_compact_updates_max)
        if not self._is_due(rows, request, cut.updates):
            return Compacted(0, 0)
        built = LiveDocument(
            bytes_max=self._config.document_bytes_max,
            roots_max=self._config.roots_max,
            updates=compaction.content(rows, cut.ends),
            roots=document.roots(rows),
        )
        merged = built.snapshot()
        check_size(self._config, len(merged), "a compacted document")
        change = compaction.Compact(sha256(merged).digest(), cut.ends.pack())
        context.apply(change, Blobs(merged))
        return Compacted(cut.updates, len(merged), cut.more)

    def _is_due(self, rows: Rows, request: Compact, updates: int) -> bool:
        standing = compaction.standing(rows)
        if request.at_least <= 1:
            return updates > 0 or len(standing) > 1  # Concurrent compactions become one.
        return updates >= max(request.at_least, sum(len(each.merged) for each in standing) // BYTES_PER_UPDATE)


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
