"""What a document's concurrent edits lost, from the updates that are stored.

Law: an answer is a function of the stored updates and their positions, so that replicas which hold the same say the same.
"""

from __future__ import annotations

from shoal import values
from shoal.config import Config
from shoal.crdt import document
from shoal.crdt.clock import COUNTER_BITS
from shoal.crdt.conflicts import Conflicts, Overwritten
from shoal.errors import ShoalError, StoreCorrupt
from shoal.node.facet import Checks, Readers, View, Writers
from shoal.protocol import requests


class Losses:
    def __init__(self, config: Config) -> None:
        self._config = config
        self.checks: Checks = {}
        self.writers: Writers = {}
        self.readers: Readers = {requests.ReadConflicts: self._read}

    def _read(self, view: View, _request: requests.ReadConflicts) -> requests.Conflicts:
        """
        Raises:
            StoreCorrupt: an update cannot be read.
        """
        conflicts = Conflicts()
        try:
            for position, update in document.updates(view.rows):
                conflicts.add(update, position)
        except ShoalError as error:
            raise StoreCorrupt(f"a document's update cannot be read: {error.message} Run `shoal verify`.") from None
        # At one position the lesser id first, so that all say them in one order.
        found = sorted(conflicts.overwritten(), key=lambda lost: (lost.at, lost.id), reverse=True)
        authors = document.authors(view.rows)
        most = self._config.document_conflicts_max
        return requests.Conflicts([_shown(lost, authors) for lost in found[:most]], more=len(found) > most)


def _shown(lost: Overwritten, authors: dict[int, str]) -> requests.Overwritten:
    return requests.Overwritten(
        list(lost.path),
        values.encode(lost.lost),
        authors.get(lost.lost_client, ""),
        values.encode(lost.stands),
        authors.get(lost.stands_client, ""),
        int.from_bytes(lost.at[:8], "big") >> COUNTER_BITS,
    )
