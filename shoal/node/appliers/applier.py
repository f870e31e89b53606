"""How one kind of change is applied: in the same way if it is issued here, received from a peer, or folded again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shoal.crdt.rows import Rows, Stamp
from shoal.kinds.document.state.document import Pace
from shoal.node.appliers.effects import NO_EFFECTS, Effects
from shoal.node.blobs import NOTHING, Blobs
from shoal.node.turns import Steps
from shoal.protocol.requests import Edit
from shoal.records import NamedTuple
from shoal.storage.keys import Kind

Apply = Callable[[Rows, Stamp, Any, Blobs], Any]
Check = Callable[[Rows, Stamp, Any, Blobs], Blobs]


def _sound(_rows: Rows, _stamp: Stamp, _change: Any, attached: Blobs) -> Blobs:
    return attached


def _nothing(_rows: Rows, _stamp: Stamp, _change: Any) -> Blobs:
    return NOTHING


def _nameless(_name: str, _stamp: Stamp, _change: Any) -> str:
    return ""


class Applier(NamedTuple):
    """`apply` applies a valid change; `check` validates one that a peer sent, and returns the blobs to apply it with."""

    kind: Kind  # Of the objects that it changes.
    apply: Apply  # Its result is for the handler that issues the change.
    check: Check = _sound  # Raises BadOperation if the change or its blobs are not valid.
    attached_of: Callable[[Rows, Stamp, Any], Blobs] = _nothing  # Raises StoreCorrupt if a row is missing or damaged.
    id_of: Callable[[str, Stamp, Any], str] = _nameless  # For watchers: the part of the object of that name.
    others: frozenset[Kind] = frozenset()  # Of other objects that it changes.
    effects: Effects = NO_EFFECTS
    edit_of: Callable[[Any, Blobs], Edit] | None = None  # The push to followers of a document.
    vet: Callable[[Blobs, Pace], Steps[None]] | None = None  # Does beforehand, in steps, what takes long in its check.
    since: Callable[[Any], int] | None = None  # As `mutation.since`.

    @property
    def names_content(self) -> bool:
        """Whether such a change can have blobs."""
        return self.attached_of is not _nothing


def position_of(_name: str, stamp: Stamp, _change: Any) -> str:
    """An `id_of`: the change's own place."""
    return stamp.pack_position().hex()


Appliers = dict[type, Applier]


def bare(
    kind: Kind,
    apply: Callable[[Rows, Stamp, Any], Any],
    check: Callable[[Stamp, Any], None] = lambda _stamp, _change: None,
    id_of: Callable[[str, Stamp, Any], str] = _nameless,
    effects: Effects = NO_EFFECTS,
    since: Callable[[Any], int] | None = None,
) -> Applier:
    """The applier of a change without blobs."""

    def applied(rows: Rows, stamp: Stamp, change: Any, _attached: Blobs) -> Any:
        return apply(rows, stamp, change)

    def checked(_rows: Rows, stamp: Stamp, change: Any, attached: Blobs) -> Blobs:
        check(stamp, change)
        return attached

    return Applier(kind, applied, checked, id_of=id_of, effects=effects, since=since)
