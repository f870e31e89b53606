"""How one kind of change is carried out: the same if it is issued here, received from a peer, or folded again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from shoal.crdt.rows import Rows, Stamp
from shoal.node.blobs import NOTHING, Blobs
from shoal.storage.keys import Kind

Apply = Callable[[Rows, Stamp, Any, Blobs], Any]
Check = Callable[[Rows, Stamp, Any, Blobs], Blobs]


def _sound(_rows: Rows, _stamp: Stamp, _change: Any, attached: Blobs) -> Blobs:
    return attached


def _nothing(_rows: Rows, _stamp: Stamp, _change: Any) -> Blobs:
    return NOTHING


class Applier(NamedTuple):
    """`apply` takes a change that is sound; `check` says whether one that a peer sent is, and returns what to apply it with."""

    kind: Kind  # Of the objects that it changes.
    apply: Apply  # What it returns is for the handler that issues the change.
    check: Check = _sound  # BadOperation: it is not what it says it is.
    attached_of: Callable[[Rows, Stamp, Any], Blobs] = _nothing  # StoreCorrupt: what must be there is not.
    others: frozenset[Kind] = frozenset()  # Of objects that it changes besides.

    @property
    def names_content(self) -> bool:
        return self.attached_of is not _nothing


Appliers = dict[type, Applier]


def bare(
    kind: Kind, apply: Callable[[Rows, Stamp, Any], Any], check: Callable[[Stamp, Any], None] = lambda _stamp, _change: None
) -> Applier:
    """For a change that holds all it needs."""

    def applied(rows: Rows, stamp: Stamp, change: Any, _attached: Blobs) -> Any:
        return apply(rows, stamp, change)

    def checked(_rows: Rows, stamp: Stamp, change: Any, attached: Blobs) -> Blobs:
        check(stamp, change)
        return attached

    return Applier(kind, applied, checked)
