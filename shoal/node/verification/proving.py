"""Prove that open documents show what their stored updates build: one after the other, in steps, at the scrub's pace.

Laws:
- A document is built from its rows alone, without its snapshot, and compared with the live one where both hold the same
  updates. If it moved meanwhile, it is looked at again in the next round.
- One that shows something else is reported, and dropped with its snapshot: its next use builds it from its rows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from shoal.config import Config
from shoal.errors import ShoalError
from shoal.kinds.document.serving.opening import ROOTS_MAX
from shoal.kinds.document.state import compaction, document
from shoal.kinds.document.state.live import Building, LiveDocument
from shoal.kinds.document.state.readiness import parts
from shoal.node.database import Database
from shoal.node.target import Target
from shoal.node.turns import Steps, document_pace, in_turns
from shoal.node.verification.report import ObjectPlace, text_of
from shoal.storage import keys

_log = logging.getLogger("shoal.node")


class Proving:
    """Looks at the documents that are open on one node. `differs` is told of each that showed something else."""

    def __init__(self, database: Database, config: Config, *, differs: Callable[[ObjectPlace], None]) -> None:
        self._database = database
        self._config = config
        self._differs = differs
        self._left: list[bytes] = []  # Of this round: the keys of their snapshots.
        self._next_at = 0.0
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    async def stop(self) -> None:
        """Cancel what is under way. No more begins."""
        self._stopped = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def tick(self, now: float) -> None:
        """Look at the next document, if one is due. `now`: monotonic seconds."""
        if self._task is not None or self._stopped or now < self._next_at:
            return
        if not self._left:
            self._left = list(self._database.documents.held)
            self._next_at = now + self._config.scrub_interval_s
        while self._left:
            key = self._left.pop()
            live = self._database.documents.held.get(key)
            if live is not None:
                self._next_at = max(self._next_at if not self._left else 0.0, now + live.size / self._config.scrub_bytes_per_s)
                self._task = asyncio.get_running_loop().create_task(self._prove(key))
                return

    async def _prove(self, key: bytes) -> None:
        try:
            with suppress(ShoalError):  # A part of it is on its way, or cannot be read: its use says so.
                place = ObjectPlace(*keys.split_object(key)[:4])
                if await in_turns(self.differing(key)):
                    _log.warning("%s showed something else than its updates build: it is built again", text_of(place))
                    self._differs(place)
                    await self._database.exchange.rebuilder.write(place, {})
        finally:
            self._task = None

    def differing(self, key: bytes) -> Steps[bool]:
        """Whether the live document shows something else than its rows build, although both hold the same updates.

        Raises:
            StoreCorrupt: it cannot be built.
        """
        target = Target(*keys.split_object(key)[1:4])
        pace = document_pace()
        begun = self._database.document(target).rows
        if compaction.has_gap(begun):
            return False
        building = Building()
        for each in compaction.standing(begun):
            for part in parts(each.merged, pace, whole_max=pace.bytes):
                building.add([part])
                yield
        for page in document.pages(lambda: self._database.document(target).rows, pace):
            building.add([update for _, update in page])
            yield
        rows, live = self._database.document(target).rows, self._database.documents.held.get(key)
        if live is None or rows.key(b"") != begun.key(b"") or compaction.has_gap(rows):
            return False
        built = LiveDocument(
            bytes_max=self._config.document_bytes_max,
            roots_max=ROOTS_MAX,
            built=building,
            updates=[document.withdrawn(rows)],
            roots=live.roots,
        )
        return built.extent() == live.extent() and built.canonical() != live.canonical()
