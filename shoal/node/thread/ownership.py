"""Refuses the write of an owner who is known to be superseded. Who names no owner is never refused."""

from __future__ import annotations

from shoal.crdt.rows import Rows
from shoal.crdt.thread import ownership
from shoal.errors import OwnerSuperseded
from shoal.protocol.requests import Annotate, Save, Unlabel


def check_owner(rows: Rows, request: Save | Annotate | Unlabel) -> None:
    """
    Raises:
        OwnerSuperseded: another has claimed the thread, as far as this replica knows.
    """
    if request.owner and ownership.owner(rows).hex() != request.owner:
        raise OwnerSuperseded(
            f"another writer has claimed thread {request.thread!r} since this one did. Nothing was written. "
            "Stop, or claim the thread again and continue from its current state."
        )
