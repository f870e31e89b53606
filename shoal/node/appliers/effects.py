"""The effects of a change outside the rows that it writes: declared once, at its kind, and read wherever they count.

Laws:
- Nothing outside `appliers` asks of which kind a change is, in order to know what follows from it. Issuing, receiving,
  sweeping, folding again and repair read these columns, so that a new kind of change is declared in one place.
- A change has the same effects whether it is issued here or comes from a peer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from shoal.crdt.dot import NOTHING_SEEN, VersionVector
from shoal.crdt.rows import Rows, Stamp
from shoal.kinds.document.state.coverage import Coverage
from shoal.kinds.thread.state.dag import Record
from shoal.node.blobs import Blobs
from shoal.node.transaction import ObjectRows
from shoal.records import NamedTuple


class What(IntEnum):
    """The kind of rows that an entry of the garbage queue names. The numbers are on disk and never reused."""

    GENERATION = 1  # The rows of an ended generation.
    CHECKPOINTS = 2  # Pruned checkpoints.
    EVENTS = 3  # Trimmed events of a journal.
    UPDATES = 4  # Updates that a compaction covers.
    VALUES = 5  # Values of events that were erased.
    NOTES = 6  # Notes that were cut.


def _whole(_stamp: Stamp, _change: Any) -> bytes:
    return b""


class Sweep(NamedTuple):
    """The rows that a change leaves to be removed once it is stable: as `Garbage.ends` describes them."""

    what: What
    names: Callable[[Stamp, Any], bytes] | None = _whole  # As the change alone says it; None: the rows say it.
    # By the rows, with the change in them; None: nothing.
    found: Callable[[ObjectRows, Stamp, Any], bytes | None] | None = None


@dataclass
class Erased:
    """The parts of one object that the operations of a log erased, so that their absence is no flaw."""

    checkpoints: set[bytes] = field(default_factory=set)  # Those that prunes name.
    events: VersionVector = NOTHING_SEEN  # The operations whose events were trimmed.
    updates: list[Coverage] = field(default_factory=list)  # What each compaction covers.
    values: set[bytes] = field(default_factory=set)  # Events whose values were erased: their positions, and marks.
    notes: dict[str, VersionVector] = field(default_factory=dict)  # The operations whose notes were cut, by label.


class Effects(NamedTuple):
    """One column for each effect. A kind of change without any has no effects but those of its rows."""

    ends: bool = False  # It ends its object's generation, to which it does not belong itself.
    record: Callable[[Blobs], Record] | None = None  # Of the checkpoint that it stores: what that builds on and names.
    hides: Callable[[Any], Collection[bytes]] | None = None  # Checkpoints that are not shown any more.
    sweeps: Sweep | None = None
    frees: Callable[[Any], bool] | None = None  # Whether it removes rows at once, whose bytes stay in the files for a while.
    marks_lease: bool = False  # It says whether its thread is under a lease.
    sets_status: bool = False  # It says under which status its thread is listed.
    erases: Callable[[Any, Erased], None] | None = None  # Adds to what the log erased of its object; if damaged, nothing.
    erased_by: Callable[[Rows, Stamp, Any, Erased], bool] | None = None  # Whether that accounts for its missing blobs.


NO_EFFECTS = Effects()
