"""Events that a node appends to a thread's journal itself: who moved what, when and why.

Law: the event is a change of the same operation as the move that it describes. It is a
map whose `kind` says what happened, and has the implied key of its request, so that a
request that went to two nodes appends one event.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from shoal import values
from shoal.kinds.journal.state import journal
from shoal.node.blobs import Blobs
from shoal.node.handler import WriteContext


def tell(context: WriteContext, kind: str, fields: dict[str, Any]) -> None:
    """Append an event with this `kind` and these fields, which must be values, to the thread's journal."""
    event = values.encode({"kind": kind} | fields)
    change = journal.Append(sha256(event).digest(), context.implied_key)
    context.apply(change, Blobs(event))
