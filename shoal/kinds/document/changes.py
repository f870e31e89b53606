"""Changes of documents. `shoal.kinds.document.serving.documents` updates the live documents.

Laws:
- What a peer sent is looked at once, and a large one in steps before it is applied: its check finds what was found then, good
  or bad.
- A value of an update has at most `yjs.VALUE_PARTS_MAX` parts: no node issues a longer one. What is stored is not asked.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Generator
from contextlib import suppress
from hashlib import sha256

import msgspec

from shoal.crdt.applier import (
    ERASED,
    VECTOR_BYTES_MAX,
    Applier,
    Appliers,
    Blobs,
    Effects,
    Erased,
    Sweep,
    What,
    check_content,
    intact,
    is_gone,
)
from shoal.crdt.rows import Rows, Stamp
from shoal.errors import BadOperation, ShoalError
from shoal.kinds import Kind
from shoal.kinds.document.state import compaction, document, repeats, yjs
from shoal.kinds.document.state.compaction import Coverage
from shoal.names import check_names
from shoal.records import NamedTuple

SHORT_BYTES = 8 * 1024  # What a look at so many bytes takes is no step of its own.
_VETTED_MAX = 4096  # As many as one operation has.
_PARSED_MAX = 16  # Of those, whose structure is kept for the live document.
_VETTED: dict[tuple[bytes, ...], _Found] = {}  # What was found last.
_PARSED: deque[tuple[bytes, ...]] = deque()  # Of which of those the structure is kept.


def _apply(rows: Rows, stamp: Stamp, change: document.Update, attached: Blobs) -> None:
    if is_gone(attached):
        compaction.apply_erased(rows, stamp, change)
    else:
        document.apply(rows, stamp, change, attached.content)


def _compact(rows: Rows, stamp: Stamp, change: compaction.Compact, attached: Blobs) -> bool:
    """Apply a compaction; True if it fills a gap."""
    # If it was swept, another one covers it, which is here or will arrive.
    return not is_gone(attached) and compaction.apply(rows, stamp, change, attached.content)


def _check(_rows: Rows, _stamp: Stamp, change: document.Update, attached: Blobs) -> Blobs:
    check_names("author", change.authors.values())
    if is_gone(attached):
        return attached
    check_content(attached, change.digest, "its update does not match its hash")
    found = _VETTED.get(_key(change))
    if found is None:
        deque(_looking(change, attached.content, yjs.CLOCK_MAX), maxlen=0)
    else:
        _raise(found)
        if found.parsed is not None:
            yjs.remember(attached.content, found.parsed)
    return attached


def _check_compaction(_rows: Rows, stamp: Stamp, change: compaction.Compact, attached: Blobs) -> Blobs:
    if is_gone(attached):
        return attached
    check_content(attached, change.digest, "its merged update does not match its hash")
    if len(change.coverage) > VECTOR_BYTES_MAX:
        raise BadOperation(f"its compaction names origins in more than {VECTOR_BYTES_MAX} bytes", reason="content")
    try:
        compaction.check(change, stamp)
    except ValueError as error:
        raise BadOperation(f"its compaction cannot be applied ({error})", reason="content") from None
    found = _VETTED.get(_key(change))
    if found is None:
        deque(_looking(change, attached.content, sys.maxsize), maxlen=0)
    else:
        _raise(found)
    return attached


def _looking(
    change: document.Update | compaction.Compact, content: bytes, every: int
) -> Generator[None, None, yjs.Parsed | None]:
    """Look at what a peer sent, so many structs at a time.

    Raises:
        BadOperation: no node sends it.
    """
    try:
        if isinstance(change, compaction.Compact):
            yield from compaction.vet(content, structs_max=every)
            return None
        # A part has a byte at least. Whoever applies a short one finds what `parse` found.
        is_short = len(content) <= SHORT_BYTES
        parsed = yjs.parse(content) if is_short else (yield from yjs.parsing(content, every, value_max=yjs.VALUE_PARTS_MAX))
        if change.genesis:
            from shoal.kinds.document.state import genesis  # With the engine, which takes long to import.

            genesis.check(change.genesis, parsed)
        if change.attempt is not None:
            yield from repeats.checking(change.attempt, parsed, every)
    except ShoalError as error:
        raise BadOperation(error.message, reason="content") from None
    return parsed


class _Found(NamedTuple):
    """The outcome of a look at what a peer sent."""

    parsed: yjs.Parsed | None = None
    bad: str = ""


def _vet(change: document.Update | compaction.Compact, beside: Blobs, pace: document.Pace) -> Generator[None, None, None]:
    if sha256(beside.content).digest() != change.digest:
        return  # Its check says so.
    found = _Found()
    try:
        parsed = yield from _looking(change, beside.content, pace.updates)
        if parsed is not None and parsed.weight <= yjs.STRUCTS_MAX:
            found = _Found(parsed)
    except BadOperation as error:
        found = _Found(bad=error.message)
    key = _key(change)
    _VETTED[key] = found
    _PARSED.append(key)
    while len(_PARSED) > _PARSED_MAX:
        before = _PARSED.popleft()
        if before in _VETTED and before not in _PARSED:
            _VETTED[before] = _VETTED[before]._replace(parsed=None)
    while len(_VETTED) > _VETTED_MAX:
        _VETTED.pop(next(iter(_VETTED)))


def _key(change: document.Update | compaction.Compact) -> tuple[bytes, ...]:
    """Of all on which the outcome depends."""
    if isinstance(change, compaction.Compact):
        return change.digest, b"compact"
    return change.digest, change.genesis, msgspec.msgpack.encode(change.attempt)


def _raise(found: _Found) -> None:
    if found.bad:
        raise BadOperation(found.bad, reason="content")


def _update_of(rows: Rows, stamp: Stamp, change: document.Update) -> Blobs:
    if not document.holds(rows, stamp) and compaction.is_erased(rows, stamp, change):
        return ERASED
    return Blobs(document.payload_of(rows, stamp, change))


def _merged_of(rows: Rows, stamp: Stamp, change: compaction.Compact) -> Blobs:
    merged = compaction.content_of(rows, stamp, change)
    return ERASED if merged is None else intact(merged, change.digest, f"the compaction {stamp.dot} of a document")


def _is_compacted(rows: Rows, stamp: Stamp, _change: document.Update, erased: Erased) -> bool:
    # Until a compaction that covers it arrives, a row says that it was erased elsewhere.
    position = stamp.pack_position()
    return compaction.is_awaited(rows, stamp) or any(coverage.covers(position) for coverage in erased.updates)


def _is_dominated(_rows: Rows, _stamp: Stamp, change: compaction.Compact, erased: Erased) -> bool:
    coverage = Coverage.unpack(change.coverage)
    return sum(other.dominates(coverage) for other in erased.updates) > 1


def _erases(change: compaction.Compact, erased: Erased) -> None:
    with suppress(ValueError):
        erased.updates.append(Coverage.unpack(change.coverage))


def _replaced(stamp: Stamp, change: compaction.Compact) -> bytes:
    return stamp.pack_position() + change.digest


APPLIERS: Appliers = {
    document.Update: Applier(
        Kind.DOCUMENT, _apply, _check, _update_of, effects=Effects(erased_by=_is_compacted), edits=True, vet=_vet
    ),
    compaction.Compact: Applier(
        Kind.DOCUMENT,
        _compact,
        _check_compaction,
        _merged_of,
        effects=Effects(sweeps=Sweep(What.UPDATES, _replaced), erases=_erases, erased_by=_is_dominated),
        vet=_vet,
    ),
}
