"""Changes of counters, registers and sets."""

from __future__ import annotations

from shoal.crdt import counter, orset, register
from shoal.node.changes.handling import Handlings, bare
from shoal.storage.keys import Kind

HANDLINGS: Handlings = {
    counter.Add: bare(Kind.COUNTER, counter.apply),
    register.Assign: bare(Kind.REGISTER, register.apply),
    orset.Alter: bare(Kind.SET, orset.apply),
}
