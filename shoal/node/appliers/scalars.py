"""Changes of counters, registers, sets and maps."""

from __future__ import annotations

from shoal.crdt.values import counter, ormap, orset, register
from shoal.node.appliers.applier import Appliers, bare
from shoal.storage.keys import Kind

APPLIERS: Appliers = {
    counter.Add: bare(Kind.COUNTER, counter.apply),
    register.Assign: bare(Kind.REGISTER, register.apply),
    orset.Alter: bare(Kind.SET, orset.apply),
    **{
        kind: bare(Kind.MAP, ormap.apply, id_of=lambda _name, _stamp, change: change.key)
        for kind in (ormap.Put, ormap.Add, ormap.Alter, ormap.Remove)
    },
}
