"""Changes of documents. Who keeps live documents applies them there (`shoal.node.documents`)."""

from __future__ import annotations

from hashlib import sha256

from shoal.crdt import document, genesis, yjs
from shoal.crdt.rows import Rows, Stamp
from shoal.errors import BadOperation, ShoalError
from shoal.names import check_names
from shoal.node.attached import Attached
from shoal.node.changes.handling import Handling, Handlings
from shoal.storage.keys import Kind


def _apply(rows: Rows, stamp: Stamp, change: document.Update, attached: Attached) -> None:
    document.apply(rows, stamp, change, attached.content)


def _receive(rows: Rows, stamp: Stamp, change: document.Update, attached: Attached) -> None:
    check_update(change, attached)
    _apply(rows, stamp, change, attached)


def check_update(change: document.Update, attached: Attached) -> None:
    """
    Raises:
        BadOperation: what came beside a document's change is not the update that it names, or is none.
        InvalidName: an author's name is not legal.
    """
    check_names("author", change.authors.values())
    if sha256(attached.content).digest() != change.digest:
        raise BadOperation("its update does not match its hash", reason="content")
    try:
        yjs.parse(attached.content)
        if change.genesis:
            genesis.check(change.genesis, attached.content)
    except ShoalError as error:
        raise BadOperation(error.message, reason="content") from None


def _update_of(rows: Rows, stamp: Stamp, change: document.Update) -> Attached:
    return Attached(document.payload_of(rows, stamp, change))


HANDLINGS: Handlings = {document.Update: Handling(Kind.DOCUMENT, _apply, _receive, _update_of)}
