"""Labels, by which a thread's checkpoints are found, notes beside them, and the ownership of the thread.

Labels: names by which a thread's checkpoints are found.

Laws:
- Of the checkpoints that were saved under a label and not released since, the label
  names the one with the greatest (HLC, id), on every replica.
- A release lists the checkpoints that lose the label; one that was saved under it
  concurrently keeps it. A released checkpoint does not get the label back
  when the same save arrives once more, under another dot.
- Labels are listed in the order of their bytes.

Rows (within the thread's, beside the checkpoints'):
    N label                  the checkpoints that have it, greatest first: hlc₈ id₃₂ each

Notes: small named values beside a label. The checkpoint need not exist yet.

Laws:
- A label's notes are read from the operations that wrote them, in the order of their
  positions, which is a causal order. A note written as `first` has no effect if its name
  is taken; any other note replaces the one with its name. So replicas that
  hold the same operations read the same, in whatever order these came.
- Of the operations with one key, the one with the least dot counts.
- A cut drops the notes of a label that its issuer knew, and no others. They are not read any more. Once the cut is stable,
  no operation that it covers can still arrive, so the rows of these go, and what the vector says of them.

Rows (within the thread's, beside the checkpoints'):
    P                             empty: notes were cut in this thread, so their rows may be missing
    P len₂ label                  a vector: the operations that it covers are cut
    P len₂ label position₃₄       keylength₂ key content: the notes of one operation

Ownership of a thread: the lease that it is under, and the latest claim of writers that agree
to ask.

Laws:
- Of all claims the one with the greatest (HLC, token) holds, on every replica, so
  that an owner, once superseded, never becomes current again. Two claims that one
  request made on two nodes have one token, and are one.
- Of all marks of leases the one with the greatest (fencing number, whether it is over, holder) counts, on every replica. The
  quorum register decides who holds a lease; the mark tells a node that it has to ask.
- When each lease began and was given back is kept of the marks with the greatest numbers, `TERMS_MAX` terms: the same on every
  replica, in whatever order the marks came. Nothing is decided by it.

Rows (within the thread's, beside the checkpoints'):
    O                        hlc₈ token: the claim that holds
    J                        fence₈ over₁ holder: the mark that counts
    J fence₈ over₁           hlc₈ holder: the earliest mark of this term's begin, or of its end
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from shoal.crdt.dot import DOT_BYTES, HLC_BYTES, Dot, Origin, VersionVector, wall_ms_of
from shoal.crdt.rows import POSITION_BYTES, Rows, Stamp
from shoal.errors import InvalidValue, StoreCorrupt
from shoal.records import NamedTuple

LABEL = b"N"
_ID_BYTES = 32
_ENTRY_BYTES = 8 + _ID_BYTES


class Release(msgspec.Struct, array_like=True, frozen=True, tag="release"):
    """The mutation: these checkpoints lose the label."""

    label: str
    ids: list[bytes]


class LabelEntry(msgspec.Struct, frozen=True, order=True):
    """A checkpoint that has a label, and the HLC of its save."""

    hlc: int
    id: bytes


def name(rows: Rows, label: str, entry: LabelEntry, *, first: bool) -> None:
    """Record that a checkpoint was saved under a label. One saved again only renews its HLC, if it still has the label."""
    before = entries(rows, label)
    if not before:  # Most labels are new.
        if first:
            _put(rows, label, [entry])
        return
    kept = [other for other in before if other.id != entry.id]
    if first or len(kept) < len(before):
        _put(rows, label, [*kept, entry])


def apply_label(rows: Rows, _stamp: Stamp, release: Release) -> None:
    """Take the label from these checkpoints."""
    before = entries(rows, release.label)
    kept = [entry for entry in before if entry.id not in release.ids]
    if len(kept) < len(before):
        _put(rows, release.label, kept)


def entries(rows: Rows, label: str) -> list[LabelEntry]:
    """The checkpoints that have this label, the greatest (HLC, id) first; the label names the first."""
    packed = rows.get(LABEL + label.encode())
    return _unpack(packed) if packed else []


def listed(
    rows: Rows, prefix: str, *, after: str | None = None, reverse: bool = False, limit: int | None = None
) -> Iterator[tuple[str, bytes]]:
    """The labels that begin with `prefix`, each with the id that it names. `after` is exclusive, in the listing's direction."""
    start = None if after is None else LABEL + after.encode()
    for key, packed in rows.scan(LABEL + prefix.encode(), after=start, reverse=reverse, limit=limit):
        yield key[1:].decode(), packed[8:_ENTRY_BYTES]


def _put(rows: Rows, label: str, kept: list[LabelEntry]) -> None:
    key = LABEL + label.encode()
    if not kept:
        rows.delete(key)
        return
    if len(kept) > 1:
        kept.sort(reverse=True)
    rows.put(key, b"".join([entry.hlc.to_bytes(8, "big") + entry.id for entry in kept]))


def _unpack(packed: bytes) -> list[LabelEntry]:
    return [
        LabelEntry(int.from_bytes(packed[at : at + 8], "big"), packed[at + 8 : at + _ENTRY_BYTES])
        for at in range(0, len(packed), _ENTRY_BYTES)
    ]


NOTES = b"P"


class Note(msgspec.Struct, array_like=True, frozen=True):
    """A small named value beside a label."""

    name: bytes
    value: bytes
    first: bool = False  # It has no effect if its name is taken.


class Annotate(msgspec.Struct, array_like=True, frozen=True, tag="annotate"):
    """The mutation: writes notes. They are stored once, as a row; the log holds this."""

    label: str
    digest: bytes  # SHA-256 of the packed notes.
    key: str | None = None


class Cut(msgspec.Struct, array_like=True, frozen=True, tag="cut"):
    """The mutation: drops the label's notes that a vector covers."""

    label: str
    known: bytes  # The packed vector.


def pack_cut(change: Cut) -> bytes:
    """The cut of a drop, for the queue of garbage."""
    label = change.label.encode()
    return len(label).to_bytes(2, "big") + label + change.known


def unpack_cut(packed: bytes) -> Cut:
    """The cut in bytes from `pack_cut`."""
    end = 2 + int.from_bytes(packed[:2], "big")
    return Cut(packed[2:end].decode(), packed[end:])


class Written(NamedTuple):
    """The notes of one operation, packed, and when it was issued."""

    dot: Dot
    hlc: int
    key: bytes
    content: bytes


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Note])


def pack(notes: list[Note]) -> bytes:
    """The notes in the form that travels beside an `Annotate`."""
    return _encoder.encode(notes)


def unpack(packed: bytes) -> list[Note]:
    """The notes in bytes from `pack`.

    Raises:
        InvalidValue: these bytes are no notes.
    """
    try:
        return _decoder.decode(packed)
    except ValueError as error:  # msgspec's own are ValueErrors too.
        raise InvalidValue(f"the notes cannot be read ({error}). Nothing was written.") from None


def apply_note(rows: Rows, stamp: Stamp, annotate: Annotate, content: bytes) -> None:
    """Write the notes, under the position of their operation."""
    key = (annotate.key or "").encode()
    rows.put(notes_of(annotate.label) + stamp.pack_position(), len(key).to_bytes(2, "big") + key + content)


def cut(rows: Rows, _stamp: Stamp, change: Cut) -> None:
    """Drop the notes that the cut's vector covers. They are no longer read; their rows stay until they are swept."""
    row = notes_of(change.label)
    before = VersionVector.unpack(rows.get(row) or b"")
    rows.put(row, before.join(VersionVector.unpack(change.known)).pack())
    rows.put(NOTES, b"")


def ever_cut(rows: Rows) -> bool:
    """Whether notes of any label of the thread were cut."""
    return rows.get(NOTES) is not None


def swept(rows: Rows, change: Cut, *, after: bytes | None = None) -> Iterator[bytes]:
    """The rows to remove once a cut is stable, from strictly above one: those of the notes that it covers."""
    known, prefix = VersionVector.unpack(change.known), notes_of(change.label)
    return (row for row, _ in rows.scan(prefix, after=after or prefix) if known.covers(_dot_of(row)))


def settle(rows: Rows, change: Cut) -> None:
    """Forget what a stable cut covers, whose rows are gone."""
    row, known = notes_of(change.label), VersionVector.unpack(change.known)
    before = VersionVector.unpack(rows.get(row) or b"")
    left = VersionVector((origin, sequence) for origin, sequence in before.items() if known[origin] < sequence)
    if left:
        rows.put(row, left.pack())
    else:
        rows.delete(row)


def known(rows: Rows, label: str) -> VersionVector:
    """The least vector that covers the label's notes. A cut of all of them names it."""
    greatest: dict[Origin, int] = {}
    prefix = notes_of(label)
    for entry in _uncut(rows.scan(prefix), prefix):
        greatest[entry.dot.origin] = max(entry.dot.sequence, greatest.get(entry.dot.origin, 0))
    return VersionVector(greatest)


def parsed(row: bytes) -> tuple[str, Dot | None] | None:
    """The label of a row of notes, and the operation that wrote them; None for the label's vector. Another row is None."""
    if not row.startswith(NOTES) or row == NOTES:
        return None
    end = len(NOTES) + 2 + int.from_bytes(row[len(NOTES) :][:2], "big")
    return row[len(NOTES) + 2 : end].decode(), _dot_of(row) if len(row) > end else None


def content_of(rows: Rows, stamp: Stamp, annotate: Annotate) -> bytes | None:
    """The packed notes of a change that was applied to `rows`; None if they were cut and swept.

    Raises:
        StoreCorrupt: the row that must hold them is not there, and no notes of the thread were cut.
    """
    stored = rows.get(notes_of(annotate.label) + stamp.pack_position())
    if stored is None:
        if ever_cut(rows):
            return None
        raise StoreCorrupt(f"notes {stamp.pack_position().hex()} are in the log and not in their thread. Run `shoal verify`.")
    return stored[2 + int.from_bytes(stored[:2], "big") :]


def read(rows: Rows, label: str) -> list[Note]:
    """The label's notes, one by name, in the order in which their names were first written."""
    found: dict[bytes, Note] = {}
    for each in written(rows, label):
        for note in _decoder.decode(each.content):
            if not (note.first and note.name in found):
                found[note.name] = note
    return list(found.values())


def written(rows: Rows, label: str) -> Iterator[Written]:
    """The operations whose notes of a label count, in the order of their positions."""
    prefix = notes_of(label)
    return written_in(rows.scan(prefix), prefix)


def written_in(rows: Iterable[tuple[bytes, bytes]], prefix: bytes) -> Iterator[Written]:
    """The same, given all rows of the label's notes, in the order of their keys."""
    return _counting(list(_uncut(rows, prefix)))


def _counting(written: list[Written]) -> Iterator[Written]:
    least: dict[bytes, Dot] = {}
    for entry in written:
        if entry.key:
            least[entry.key] = min(entry.dot, least.get(entry.key, entry.dot))
    for entry in written:
        if not entry.key or least[entry.key] == entry.dot:
            yield entry


def _uncut(rows: Iterable[tuple[bytes, bytes]], prefix: bytes) -> Iterator[Written]:
    """The operations that are not cut."""
    gone = VersionVector()
    for row, stored in rows:
        if row == prefix:
            gone = VersionVector.unpack(stored)
            continue
        dot = _dot_of(row)
        if not gone.covers(dot):
            end = 2 + int.from_bytes(stored[:2], "big")
            hlc = int.from_bytes(row[-POSITION_BYTES:][:HLC_BYTES], "big")
            yield Written(dot, hlc, stored[2:end], stored[end:])


def _dot_of(row: bytes) -> Dot:
    return Dot.unpack(row[-POSITION_BYTES:][HLC_BYTES:][:DOT_BYTES])


def notes_of(label: str) -> bytes:
    """The prefix of the rows of a label's notes."""
    encoded = label.encode()
    return NOTES + len(encoded).to_bytes(2, "big") + encoded


OWNER, LEASE = b"O", b"J"
FENCE_MAX = 2**63 - 1
TERMS_MAX = 64  # Of a thread, of which it is kept when they began and ended.


class TakeOwnership(msgspec.Struct, array_like=True, frozen=True, tag="claim"):
    """The mutation: its writer becomes the owner of the thread."""

    token: bytes


def apply(rows: Rows, stamp: Stamp, claim: TakeOwnership) -> None:
    """Let the claim hold, unless a greater one is known."""
    offered = stamp.hlc.to_bytes(8, "big") + claim.token
    if offered > (rows.get(OWNER) or b""):
        rows.put(OWNER, offered)


def owner(rows: Rows) -> bytes:
    """The token of the claim that holds; empty if the thread was never claimed."""
    return (rows.get(OWNER) or b"")[8:]


class LeaseMark(msgspec.Struct, array_like=True, frozen=True, tag="lease"):
    """The mutation: the thread is under a lease with this fencing number, or is not any more."""

    fence: int
    holder: str
    over: bool = False


class Marked(NamedTuple):
    """The mark that counts."""

    fence: int
    over: bool
    holder: str


def apply_mark(rows: Rows, _stamp: Stamp, mark: LeaseMark) -> None:
    """Let the mark count, unless a greater one is known."""
    offered = mark.fence.to_bytes(8, "big") + bytes([mark.over]) + mark.holder.encode()
    if offered > (rows.get(LEASE) or b""):
        rows.put(LEASE, offered)


def marked(rows: Rows) -> Marked | None:
    """The mark that counts; None if the thread never was under a lease."""
    packed = rows.get(LEASE)
    return None if packed is None else Marked(int.from_bytes(packed[:8], "big"), packed[8] == 1, packed[9:].decode())


class TimedMark(msgspec.Struct, array_like=True, frozen=True, tag="lease-timed"):
    """The mutation: a mark, which is also kept with its time."""

    fence: int
    holder: str
    over: bool = False


class Tenure(NamedTuple):
    """A term of a lease, as its marks tell it."""

    fence: int
    holder: str
    from_ms: int
    until_ms: int  # When it was given back; 0: it was not: it goes on, or was not renewed.


def apply_term(rows: Rows, stamp: Stamp, term: TimedMark) -> None:
    """Let the mark count as `apply_mark` does, and keep its time unless greater terms fill the room."""
    apply_mark(rows, stamp, LeaseMark(term.fence, term.holder, term.over))
    row, told = _term(term.fence, term.over), stamp.hlc.to_bytes(8, "big") + term.holder.encode()
    known = rows.get(row)
    if known is None or told < known:
        rows.put(row, told)
    kept = [row for row, _ in rows.scan(LEASE, after=LEASE, limit=2 * TERMS_MAX + 1)]
    if len(kept) > 2 * TERMS_MAX:
        rows.delete(kept[0])


def is_open(rows: Rows, fence: int) -> bool:
    """Whether it is kept when this term began, and not that it was given back."""
    return rows.get(_term(fence, False)) is not None and rows.get(_term(fence, True)) is None


def tenures(rows: Rows) -> list[Tenure]:
    """The terms whose begin is kept, the newest first."""
    told = dict(rows.scan(LEASE, after=LEASE))
    begun = [(int.from_bytes(row[1:9], "big"), packed) for row, packed in told.items() if not row[9]]
    ends = ((fence, packed, told.get(_term(fence, True))) for fence, packed in sorted(begun, reverse=True))
    return [
        Tenure(fence, packed[8:].decode(), _wall_ms(packed), 0 if end is None else _wall_ms(end)) for fence, packed, end in ends
    ]


def _term(fence: int, over: bool) -> bytes:
    return LEASE + fence.to_bytes(8, "big") + bytes([over])


def _wall_ms(packed: bytes) -> int:
    return wall_ms_of(int.from_bytes(packed[:8], "big"))
