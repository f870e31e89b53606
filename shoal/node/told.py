"""What a node tells in a thread's journal of its own accord: who moved what, when and why.

Law: the event is a change of the same operation as the move that it tells of. It is a
map whose `kind` says what happened, and has the implied key of its request: a
request that went to two nodes is told once.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from shoal import values
from shoal.crdt import journal
from shoal.node.attached import Attached
from shoal.node.decision import Made
from shoal.node.facet import Site
from shoal.node.implied import implied_key


def told(site: Site, kind: str, fields: dict[str, Any], *, nth: int) -> Made:
    """Append the event as the operation's mutation `site.stamp.nth + nth`."""
    stamp = site.stamp.at(site.stamp.nth + nth)
    event = values.encode({"kind": kind} | fields)
    change = journal.Append(sha256(event).digest(), implied_key(site.key, stamp.nth))
    journal.apply(site.rows, stamp, change, event)
    return Made(change, Attached(event), stamp.pack_position().hex())
