"""Deletions of objects. `shoal.node.collection.generations` applies them, because their row belongs to no generation."""

from __future__ import annotations

from shoal.crdt import deletion
from shoal.node.appliers.applier import Appliers, bare
from shoal.storage.keys import Kind

_OTHERS = frozenset((Kind.DOCUMENT, Kind.COUNTER, Kind.REGISTER, Kind.SET, Kind.MAP, Kind.BUDGET))
"""A schema is withdrawn by another operation, and items are deleted one by one."""

APPLIERS: Appliers = {deletion.Delete: bare(Kind.THREAD, deletion.apply)._replace(others=_OTHERS)}
