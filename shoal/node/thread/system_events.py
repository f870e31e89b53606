"""What a node tells in a thread's journal of its own accord: who moved what, when and why.

Law: the event is a change of the same operation as the move that it tells of. It is a
map whose `kind` says what happened, and has the implied key of its request: a
request that went to two nodes is told once.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from shoal import values
from shoal.crdt.thread import journal
from shoal.node.blobs import Blobs
from shoal.node.handler import WriteContext
from shoal.node.implied_keys import implied_key


def tell(context: WriteContext, kind: str, fields: dict[str, Any]) -> None:
    """Append the event."""
    stamp = context.stamp
    event = values.encode({"kind": kind} | fields)
    change = journal.Append(sha256(event).digest(), implied_key(context.key, stamp.nth))
    context.apply(change, Blobs(event), id=stamp.pack_position().hex())
