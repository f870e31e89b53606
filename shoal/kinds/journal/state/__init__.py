"""The pure state of journals."""

from __future__ import annotations

from shoal.crdt.applier import Appliers
from shoal.crdt.rows import Rows
from shoal.kinds.journal.state import events, journal, readers, trimming

APPLIERS: Appliers = journal.APPLIERS | readers.APPLIERS | trimming.APPLIERS


def read_whole(rows: Rows) -> None:
    """Decode all rows, for `shoal verify` without a log."""
    for row, stored in rows.scan(events.EVENT):
        events.unpack(row[1:], stored)
