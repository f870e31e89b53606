"""Changes of documents. `shoal.kinds.document.serving.documents` updates the live documents."""

from __future__ import annotations

from contextlib import suppress
from hashlib import sha256

from shoal.crdt.rows import Rows, Stamp
from shoal.errors import BadOperation, ShoalError, StoreCorrupt
from shoal.kinds.document.state import compaction, document, repeats, yjs
from shoal.kinds.document.state.compaction import Coverage
from shoal.names import check_names
from shoal.node.appliers.applier import Applier, Appliers, Effects, Erased, Sweep, What
from shoal.node.transaction import ERASED, Blobs, is_gone
from shoal.node.turns import Steps
from shoal.protocol.requests import Edit
from shoal.storage.keys import Kind


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
    if sha256(attached.content).digest() != change.digest:
        raise BadOperation("its update does not match its hash", reason="content")
    try:
        yjs.parse(attached.content)
        if change.genesis:
            from shoal.kinds.document.state import genesis  # With the engine, which takes long to import.

            genesis.check(change.genesis, attached.content)
        if change.attempt is not None:
            repeats.check(change.attempt, attached.content)
    except ShoalError as error:
        raise BadOperation(error.message, reason="content") from None
    return attached


def _check_compaction(_rows: Rows, stamp: Stamp, change: compaction.Compact, attached: Blobs) -> Blobs:
    if is_gone(attached):
        return attached
    if sha256(attached.content).digest() != change.digest:
        raise BadOperation("its merged update does not match its hash", reason="content")
    try:
        compaction.check(change, stamp, attached.content)
    except ValueError as error:
        raise BadOperation(f"its compaction cannot be applied ({error})", reason="content") from None
    except ShoalError as error:
        raise BadOperation(error.message, reason="content") from None
    return attached


def _update_of(rows: Rows, stamp: Stamp, change: document.Update) -> Blobs:
    if not document.holds(rows, stamp) and compaction.is_erased(rows, stamp, change):
        return ERASED
    return Blobs(document.payload_of(rows, stamp, change))


def _merged_of(rows: Rows, stamp: Stamp, change: compaction.Compact) -> Blobs:
    merged = compaction.content_of(rows, stamp, change)
    if merged is None:
        return ERASED
    if sha256(merged).digest() != change.digest:
        raise StoreCorrupt(f"the compaction {stamp.dot} of a document is damaged. Nothing was written; run `shoal verify`.")
    return Blobs(merged)


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


def _edit_of(change: document.Update, attached: Blobs) -> Edit:
    return Edit(attached.content, change.kinds, change.authors)


def _vet(beside: Blobs, pace: document.Pace) -> Steps[None]:
    return compaction.vet(beside.content, structs_max=pace.updates)


APPLIERS: Appliers = {
    document.Update: Applier(
        Kind.DOCUMENT, _apply, _check, _update_of, effects=Effects(erased_by=_is_compacted), edit_of=_edit_of
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
