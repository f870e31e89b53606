"""Deletions of objects. `shoal.node.generations` applies them: their row is beside the generations' rows."""

from __future__ import annotations

from shoal.crdt import deletion
from shoal.crdt.rows import Rows, Stamp
from shoal.node.changes.handling import Handlings, bare
from shoal.storage.keys import Kind


def _apply(rows: Rows, stamp: Stamp, change: deletion.Delete) -> None:
    deletion.apply(rows, stamp, change)


HANDLINGS: Handlings = {deletion.Delete: bare(Kind.THREAD, _apply)._replace(others=frozenset((Kind.DOCUMENT,)))}
