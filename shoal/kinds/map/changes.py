"""Changes of maps."""

from __future__ import annotations

from shoal.crdt.dot import ORIGIN_BYTES
from shoal.crdt.rows import Rows, Stamp
from shoal.errors import BadOperation
from shoal.kinds.map import state as ormap
from shoal.kinds.register import state as register
from shoal.kinds.set import state as orset
from shoal.node.appliers.applier import NO_EFFECTS, Appliers, Effects, bare
from shoal.node.naming import check as check_implied
from shoal.protocol.requests import always
from shoal.storage.keys import Kind


def _check_entry(_stamp: Stamp, change: ormap.Change) -> None:
    if isinstance(change, ormap.Add):
        check_implied(change.request)
    elif isinstance(change, ormap.Fold):
        if any(len(row) != ormap.ADD_BYTES for row in (*change.over, *change.lost)):
            raise BadOperation("a fold names impossible adds. Nothing of it was written.", reason="content")
        if len(change.directory) not in (0, ORIGIN_BYTES):
            raise BadOperation("a fold names an impossible directory. Nothing of it was written.", reason="content")


APPLIERS: Appliers = {
    kind: bare(Kind.MAP, ormap.apply, _check_entry, id_of=lambda _name, _stamp, change: change.key, effects=effects)
    for kind, effects in (
        (ormap.Put, NO_EFFECTS),
        (ormap.Add, NO_EFFECTS),
        (ormap.Fold, NO_EFFECTS),
        (ormap.Alter, NO_EFFECTS),
        (ormap.Remove, Effects(frees=always)),
    )
}


def read_whole(rows: Rows) -> None:
    """Decode all rows, for `shoal verify` without a log."""
    for key in ormap.keys(rows):
        ormap.value(rows, key)
        register.entries(ormap.register_of(rows, key))
        list(orset.members(ormap.set_of(rows, key)))
