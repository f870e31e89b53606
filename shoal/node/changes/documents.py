"""Changes of documents. Who keeps live documents applies them there (`shoal.node.documents`)."""

from __future__ import annotations

from hashlib import sha256

from shoal.crdt import compaction, document, genesis, repeats, yjs
from shoal.crdt.rows import Rows, Stamp
from shoal.errors import BadOperation, ShoalError, StoreCorrupt
from shoal.names import check_names
from shoal.node.attached import ERASED, Attached, is_gone
from shoal.node.changes.handling import Handling, Handlings
from shoal.storage.keys import Kind


def _apply(rows: Rows, stamp: Stamp, change: document.Update, attached: Attached) -> None:
    if is_gone(attached):
        compaction.apply_erased(rows, stamp, change)
    else:
        document.apply(rows, stamp, change, attached.content)


def _receive(rows: Rows, stamp: Stamp, change: document.Update, attached: Attached) -> None:
    check_update(change, attached)
    _apply(rows, stamp, change, attached)


def _compact(rows: Rows, stamp: Stamp, change: compaction.Compact, attached: Attached) -> None:
    if not is_gone(attached):  # Else another one covers it, which is here or still to come.
        compaction.apply(rows, stamp, change, attached.content)


def _receive_compact(rows: Rows, stamp: Stamp, change: compaction.Compact, attached: Attached) -> None:
    check_compaction(stamp, change, attached)
    _compact(rows, stamp, change, attached)


def check_update(change: document.Update, attached: Attached) -> None:
    """
    Raises:
        BadOperation: what came beside a document's change is not the update that it names, or is none.
        InvalidName: an author's name is not legal.
    """
    check_names("author", change.authors.values())
    if is_gone(attached):
        return
    if sha256(attached.content).digest() != change.digest:
        raise BadOperation("its update does not match its hash", reason="content")
    try:
        yjs.parse(attached.content)
        if change.genesis:
            genesis.check(change.genesis, attached.content)
        if change.attempt is not None:
            repeats.check(change.attempt, attached.content)
    except ShoalError as error:
        raise BadOperation(error.message, reason="content") from None


def check_compaction(stamp: Stamp, change: compaction.Compact, attached: Attached) -> None:
    """
    Raises:
        BadOperation: what came beside a compaction is not the update that it names, has a gap, or covers too much.
    """
    if is_gone(attached):
        return
    if sha256(attached.content).digest() != change.digest:
        raise BadOperation("its merged update does not match its hash", reason="content")
    try:
        compaction.check(change, stamp.context, attached.content)
    except ValueError as error:
        raise BadOperation(f"its compaction cannot be applied ({error})", reason="content") from None
    except ShoalError as error:
        raise BadOperation(error.message, reason="content") from None


def _update_of(rows: Rows, stamp: Stamp, change: document.Update) -> Attached:
    if not document.holds(rows, stamp) and compaction.is_erased(rows, stamp, change):
        return ERASED
    return Attached(document.payload_of(rows, stamp, change))


def _merged_of(rows: Rows, stamp: Stamp, change: compaction.Compact) -> Attached:
    merged = compaction.content_of(rows, stamp, change)
    if merged is None:
        return ERASED
    if sha256(merged).digest() != change.digest:
        raise StoreCorrupt(f"the compaction {stamp.dot} of a document is damaged. Nothing was written; run `shoal verify`.")
    return Attached(merged)


HANDLINGS: Handlings = {
    document.Update: Handling(Kind.DOCUMENT, _apply, _receive, _update_of),
    compaction.Compact: Handling(Kind.DOCUMENT, _compact, _receive_compact, _merged_of),
}
