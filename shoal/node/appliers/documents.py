"""Changes of documents. `shoal.node.document.documents` updates the live documents."""

from __future__ import annotations

from hashlib import sha256

from shoal.crdt.document import compaction, document, repeats, yjs
from shoal.crdt.rows import Rows, Stamp
from shoal.errors import BadOperation, ShoalError, StoreCorrupt
from shoal.names import check_names
from shoal.node.appliers.applier import Applier, Appliers
from shoal.node.blobs import ERASED, Blobs, is_gone
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
            from shoal.crdt.document import genesis  # With the engine, which takes long to import.

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


APPLIERS: Appliers = {
    document.Update: Applier(Kind.DOCUMENT, _apply, _check, _update_of),
    compaction.Compact: Applier(Kind.DOCUMENT, _compact, _check_compaction, _merged_of),
}
