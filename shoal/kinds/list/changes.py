"""Changes of lists."""

from __future__ import annotations

from collections.abc import Collection

from shoal.crdt.rows import Rows, Stamp
from shoal.errors import BadOperation
from shoal.kinds.list import state as lists
from shoal.node.appliers.applier import NO_EFFECTS, Appliers, Effects, bare
from shoal.node.naming import check as check_implied
from shoal.protocol.requests import always
from shoal.storage.keys import Kind

_SEQUENCES = 1 << 47  # As many as a step of a path can name.
_NTHS = 1 << 16  # The same of mutations in an operation.
_VALUES_MAX = 4096  # The most that `page_items_max`, the bound of a request, may be.


def _check(stamp: Stamp, change: lists.Change) -> None:
    sound = stamp.dot.sequence < _SEQUENCES and stamp.nth < _NTHS
    many = change.values if isinstance(change, lists.Insert) else change.elements if isinstance(change, lists.Remove) else ()
    if len(many) > _VALUES_MAX:
        raise BadOperation(
            f"a change of a list has more than {_VALUES_MAX} elements. Nothing of it was written.", reason="content"
        )
    match change:
        case lists.Insert(at, values, request):
            check_implied(request)
            sound = sound and lists.is_place(at) and bool(values)
        case lists.Move(element, at):
            sound = sound and lists.is_place(at) and _are_named((element,))
        case lists.Remove(elements):
            sound = _are_named(elements)
    if not sound:
        raise BadOperation("a change of a list names impossible places. Nothing of it was written.", reason="content")


def _are_named(elements: Collection[lists.Named]) -> bool:
    return all(len(element.id) == lists.ID_BYTES for element in elements)


def _id_of(_name: str, stamp: Stamp, change: lists.Change) -> str:
    """The element that it is about; empty if it is about several."""
    match change:
        case lists.Insert(_, [_], request):
            return lists.id_of(stamp, request, 0).hex()
        case lists.Move(element, _) | lists.Remove([element]):
            return element.id.hex()
        case _:
            return ""


APPLIERS: Appliers = {
    kind: bare(Kind.LIST, lists.apply, _check, id_of=_id_of, effects=effects, since=lambda _: 7)
    for kind, effects in (
        (lists.Insert, NO_EFFECTS),
        (lists.Move, NO_EFFECTS),
        (lists.Remove, Effects(frees=always)),
    )
}


def read_whole(rows: Rows) -> None:
    """Decode all rows, for `shoal verify` without a log."""
    lists.size(rows)
    for element in lists.elements(rows):
        lists.named(rows, element.id)
