"""Reject a write of an owner that is known to be superseded. A write that names no owner is never rejected."""

from __future__ import annotations

from shoal.crdt.rows import Rows
from shoal.errors import OwnerSuperseded
from shoal.kinds.thread.state import ownership
from shoal.protocol.requests import Annotate, Save, Unlabel


def check_owner(rows: Rows, request: Save | Annotate | Unlabel) -> None:
    """Check that the owner that a write names is still the owner.

    Raises:
        OwnerSuperseded: this replica knows that another writer has claimed the thread.
    """
    if request.owner and ownership.owner(rows).hex() != request.owner:
        raise OwnerSuperseded(
            f"another writer has claimed thread {request.thread!r} since this one did. Nothing was written. "
            "Stop, or claim the thread again and continue from its current state."
        )
