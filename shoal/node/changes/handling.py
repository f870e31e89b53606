"""How a kind of change is handled, whoever issued it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from shoal.crdt.rows import Rows, Stamp
from shoal.node.attached import NOTHING, Attached
from shoal.storage.keys import Kind


def _nothing(_rows: Rows, _stamp: Stamp, _change: Any) -> Attached:
    return NOTHING


class Handling(NamedTuple):
    """`apply` is for changes that are known to be sound, `receive` for what another node sent."""

    kind: Kind  # Of the objects that it changes.
    apply: Callable[[Rows, Stamp, Any, Attached], None]
    receive: Callable[[Rows, Stamp, Any, Attached], None]  # BadOperation: it is not what it says it is.
    attached_of: Callable[[Rows, Stamp, Any], Attached] = _nothing  # StoreCorrupt: what must be there is not.
    others: frozenset[Kind] = frozenset()  # Of objects that it changes besides.

    @property
    def names_content(self) -> bool:
        return self.attached_of is not _nothing


Handlings = dict[type, Handling]


def bare(kind: Kind, apply: Callable[[Rows, Stamp, Any], None]) -> Handling:
    """A change that holds all it needs."""

    def applied(rows: Rows, stamp: Stamp, change: Any, _attached: Attached) -> None:
        apply(rows, stamp, change)

    return Handling(kind, applied, applied)
