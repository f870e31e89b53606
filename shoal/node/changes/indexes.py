"""Changes of which fields of items are indexed."""

from __future__ import annotations

from shoal.crdt import indexes
from shoal.crdt.rows import Rows, Stamp
from shoal.errors import BadOperation, InvalidInput
from shoal.names import check_name
from shoal.node.attached import Attached
from shoal.node.changes.handling import Handling, Handlings
from shoal.storage.keys import Kind


def _declare(rows: Rows, stamp: Stamp, change: indexes.Declare, _attached: Attached) -> None:
    indexes.apply_declare(rows, stamp, change)


def _drop(rows: Rows, stamp: Stamp, change: indexes.Drop, _attached: Attached) -> None:
    indexes.apply_drop(rows, stamp, change)


def _receive_declare(rows: Rows, stamp: Stamp, change: indexes.Declare, attached: Attached) -> None:
    for field in change.fields:
        _check(field)
    _declare(rows, stamp, change, attached)


def _receive_drop(rows: Rows, stamp: Stamp, change: indexes.Drop, attached: Attached) -> None:
    for field, _ in change.fields:
        _check(field)
    _drop(rows, stamp, change, attached)


def _check(field: str) -> None:
    try:
        check_name("field", field)
    except InvalidInput as error:
        raise BadOperation(error.message, reason="content") from None


HANDLINGS: Handlings = {
    indexes.Declare: Handling(Kind.ITEMS, _declare, _receive_declare),
    indexes.Drop: Handling(Kind.ITEMS, _drop, _receive_drop),
}
