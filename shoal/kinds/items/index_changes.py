"""Changes of the set of indexed fields of items."""

from __future__ import annotations

from shoal.crdt.rows import Stamp
from shoal.errors import BadOperation, InvalidInput
from shoal.kinds.items.state import indexes
from shoal.names import check_name
from shoal.node.appliers.applier import Appliers, bare
from shoal.storage.keys import Kind


def _check_declare(_stamp: Stamp, change: indexes.Declare) -> None:
    for field in change.fields:
        _check(field)


def _check_drop(_stamp: Stamp, change: indexes.Drop) -> None:
    for field, _ in change.fields:
        _check(field)


def _check(field: str) -> None:
    try:
        check_name("field", field)
    except InvalidInput as error:
        raise BadOperation(error.message, reason="content") from None


APPLIERS: Appliers = {
    indexes.Declare: bare(Kind.ITEMS, indexes.apply_declare, _check_declare),
    indexes.Drop: bare(Kind.ITEMS, indexes.apply_drop, _check_drop),
}
