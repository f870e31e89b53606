"""The values that concurrent edits of a document overwrote, computed from the stored updates.

Law: an answer is a function of the stored updates and their positions, so replicas that hold the same answer the same.
"""

from __future__ import annotations

from shoal import values
from shoal.config import Config
from shoal.crdt.clock import COUNTER_BITS
from shoal.crdt.rows import Rows
from shoal.errors import ShoalError, StoreCorrupt
from shoal.kinds.document.serving.compacting import check_whole
from shoal.kinds.document.state import compaction, document
from shoal.kinds.document.state.conflicts import ELEMENT, Conflicts, Overwritten
from shoal.kinds.document.state.document import Beginning
from shoal.kinds.document.state.live import LiveDocument
from shoal.node.handler import Checks, Readers, View, Writers
from shoal.protocol import requests

_COMPACTED = bytes(8)
"""A prefix of a compaction's position, which orders it before the updates that no compaction covers."""


class OverwrittenValues:
    """The handler of `ReadConflicts`."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.checks: Checks = {}
        self.writers: Writers = {}
        self.readers: Readers = {requests.ReadConflicts: self._read}

    def _read(self, view: View, _request: requests.ReadConflicts) -> requests.Conflicts:
        """The newest overwritten values, at most `document_conflicts_max`. It reads all stored updates.

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
        most = self._config.document_conflicts_max
        return requests.Conflicts([_shown(lost, authors) for lost in found[:most]], more=len(found) > most)


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
