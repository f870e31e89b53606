"""How one kind of change is applied: in the same way if it is issued here, received from a peer, or folded again.

The effects of a change outside the rows that it writes: declared once, at its kind, and read wherever they count. The bytes
beside a change, which names them by hash and does not hold them.

Laws:
- No other module of the node asks of which kind a change is, in order to know what follows from it. Issuing, receiving,
  sweeping, folding again and repair read these columns, so that a new kind of change is declared in one place.
- A change has the same effects whether it is issued here or comes from a peer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Protocol

from shoal.crdt.dot import NOTHING_SEEN, VersionVector
from shoal.crdt.rows import Rows, Stamp
from shoal.errors import BadOperation, StoreCorrupt
from shoal.kinds import Kind
from shoal.records import NamedTuple

if TYPE_CHECKING:
    from shoal.kinds.document.state.compaction import Coverage
    from shoal.kinds.document.state.document import Pace
    from shoal.kinds.thread.state.dag import Record

VECTOR_BYTES_MAX = 1024 * 1024
"""Of the origins that a change from a peer names in packed form, some tens of bytes for each: more than any directory had."""


class Blobs(NamedTuple):
    """The blobs of one change: a record, an event or an update; and a checkpoint's new chunks by their SHA-256."""

    content: bytes = b""
    chunks: Mapping[bytes, bytes] = {}
    erased: bool = False  # Missing blobs were erased. If the content is missing too, all were, and the change makes nothing.
    decoded: Any = None  # The content, if it was decoded already.


NOTHING = Blobs()
ERASED = Blobs(erased=True)


def is_gone(beside: Blobs) -> bool:
    """Whether all blobs of the change were erased."""
    return beside.erased and not beside.content


def check_content(beside: Blobs, digest: bytes, otherwise: str) -> None:
    """Check the content that a peer sent beside a change.

    Raises:
        BadOperation: it has another SHA-256, which is what the clause `otherwise` says.
    """
    if sha256(beside.content).digest() != digest:
        raise BadOperation(otherwise, reason="content")


def intact(content: bytes | None, digest: bytes, what: str) -> Blobs:
    """A content as it is stored, which `what` names for people.

    Raises:
        StoreCorrupt: it is missing, or has another SHA-256 than the log says.
    """
    if content is None or sha256(content).digest() != digest:
        raise StoreCorrupt(f"{what} is missing or damaged. Nothing was written; run `shoal verify`.")
    return Blobs(content)


class WrittenRows(Rows, Protocol):
    """Rows within a write that is being made."""

    def wrote(self, row: bytes, /) -> bool:
        """Whether this write has written or deleted the row."""
        ...


class What(IntEnum):
    """The kind of rows that an entry of the garbage queue names. The numbers are on disk and never reused."""

    GENERATION = 1  # The rows of an ended generation.
    CHECKPOINTS = 2  # Pruned checkpoints.
    EVENTS = 3  # Trimmed events of a journal.
    UPDATES = 4  # Updates that a compaction covers.
    VALUES = 5  # Values of events that were erased.
    NOTES = 6  # Notes that were cut.
    FILES = 7  # Contents of files to which nothing refers, and chunks.


def always(_change: Any) -> bool:
    """A condition that holds for each change."""
    return True


def _whole(_stamp: Stamp, _change: Any) -> bytes:
    return b""


class Sweep(NamedTuple):
    """The rows that a change leaves to be removed once it is stable: as `Garbage.ends` describes them."""

    what: What
    names: Callable[[Stamp, Any], bytes] | None = _whole  # As the change alone says it; None: the rows say it.
    # By the rows, with the change in them; None: nothing.
    found: Callable[[WrittenRows, Stamp, Any], bytes | None] | None = None


@dataclass
class Erased:
    """The parts of one object that the operations of a log erased, so that their absence is no flaw."""

    checkpoints: set[bytes] = field(default_factory=set)  # Those that prunes name.
    events: VersionVector = NOTHING_SEEN  # The operations whose events were trimmed.
    updates: list[Coverage] = field(default_factory=list)  # What each compaction covers.
    values: set[bytes] = field(default_factory=set)  # Events whose values were erased: their positions, and marks.
    notes: dict[str, VersionVector] = field(default_factory=dict)  # The operations whose notes were cut, by label.
    contents: set[bytes] = field(default_factory=set)  # Those of files that were dropped,
    chunks: set[bytes] = field(default_factory=set)  # and digests of their chunks.


class Effects(NamedTuple):
    """One column for each effect. A kind of change without any has no effects but those of its rows."""

    ends: bool = False  # It ends its object's generation, to which it does not belong itself.
    record: Callable[[Blobs], Record] | None = None  # Of the checkpoint that it stores: what that builds on and names.
    hides: Callable[[Any], Collection[bytes]] | None = None  # Checkpoints that are not shown any more.
    sweeps: Sweep | None = None
    frees: Callable[[Any], bool] | None = None  # Whether it removes rows at once, whose bytes stay in the files for a while.
    marks_lease: bool = False  # It says whether its thread is under a lease.
    lists: bool = False  # It may change under which standing its thread is listed.
    # Whether it may change what its thread asks: True; False: only if that asks something now; None: it cannot.
    asks: Callable[[Rows, Any, Blobs], bool | None] | None = None
    files: bool = False  # It may leave contents or chunks of files that are to be dropped some time.
    erases: Callable[[Any, Erased], None] | None = None  # Adds to what the log erased of its object; if damaged, nothing.
    erased_by: Callable[[Rows, Stamp, Any, Erased], bool] | None = None  # Whether that accounts for its missing blobs.


NO_EFFECTS = Effects()


Apply = Callable[[Rows, Stamp, Any, Blobs], Any]
Check = Callable[[Rows, Stamp, Any, Blobs], Blobs]


def _sound(_rows: Rows, _stamp: Stamp, _change: Any, attached: Blobs) -> Blobs:
    return attached


def _nothing(_rows: Rows, _stamp: Stamp, _change: Any) -> Blobs:
    return NOTHING


def _nameless(_name: str, _stamp: Stamp, _change: Any) -> str:
    return ""


class Applier(NamedTuple):
    """`apply` applies a valid change; `check` validates one that a peer sent, and returns the blobs to apply it with."""

    kind: Kind  # Of the objects that it changes.
    apply: Apply  # Its result is for the handler that issues the change.
    check: Check = _sound  # Raises BadOperation if the change or its blobs are not valid.
    attached_of: Callable[[Rows, Stamp, Any], Blobs] = _nothing  # Raises StoreCorrupt if a row is missing or damaged.
    id_of: Callable[[str, Stamp, Any], str] = _nameless  # For watchers: the part of the object of that name.
    others: frozenset[Kind] = frozenset()  # Of other objects that it changes.
    effects: Effects = NO_EFFECTS
    edits: bool = False  # Its content is pushed to those who follow a document.
    # Does beforehand, in steps, what takes long in its check.
    vet: Callable[[Any, Blobs, Pace], Generator[None, None, None]] | None = None
    since: Callable[[Any], int] | None = None  # The version of the peer protocol that brought it (`shoal.node.mutation`).
    # A change of many elements as several of at most so many: applied in order under its stamp, they make the same rows.
    parts: Callable[[Any, int], Iterator[Any]] | None = None

    def takes(self, kind: Kind) -> bool:
        """Whether such a change can be applied to objects of this kind."""
        return kind is self.kind or kind in self.others

    @property
    def names_content(self) -> bool:
        """Whether such a change can have blobs."""
        return self.attached_of is not _nothing


def position_of(_name: str, stamp: Stamp, _change: Any) -> str:
    """An `id_of`: the change's own place."""
    return stamp.pack_position().hex()


Appliers = dict[type, Applier]


def bare(
    kind: Kind,
    apply: Callable[[Rows, Stamp, Any], Any],
    check: Callable[[Stamp, Any], None] = lambda _stamp, _change: None,
    id_of: Callable[[str, Stamp, Any], str] = _nameless,
    effects: Effects = NO_EFFECTS,
    since: Callable[[Any], int] | None = None,
) -> Applier:
    """The applier of a change without blobs."""

    def applied(rows: Rows, stamp: Stamp, change: Any, _attached: Blobs) -> Any:
        return apply(rows, stamp, change)

    def checked(_rows: Rows, stamp: Stamp, change: Any, attached: Blobs) -> Blobs:
        check(stamp, change)
        return attached

    return Applier(kind, applied, checked, id_of=id_of, effects=effects, since=since)
