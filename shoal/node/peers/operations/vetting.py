"""The checks of large operations, in steps, before they are applied.

Law: vetting decides nothing. It does beforehand what takes long in the check of an operation, which then finds it done;
an operation that is not vetted, or whose vetting fails, is checked whole when it is applied.
"""

from __future__ import annotations

from contextlib import suppress

from shoal.cluster import operation
from shoal.cluster.messages import Shipment
from shoal.kinds.document.state.document import Pace
from shoal.node import blobs
from shoal.node.appliers import mutation
from shoal.node.blobs import is_gone
from shoal.node.turns import Steps


def is_large(shipment: Shipment, pace: Pace) -> bool:
    """Whether checking it takes more than one step."""
    return len(shipment.attached) > pace.bytes


def vet(shipment: Shipment, pace: Pace) -> Steps[None]:
    """Check the merged updates of compactions, some structs at a time."""
    with suppress(Exception):  # No content of an operation may stop the node: its check says what is wrong.
        body = operation.decode(shipment.packed)
        for change, beside in zip(mutation.decode(body.payload), blobs.unpack(shipment.attached), strict=False):
            if not is_gone(beside) and (steps := mutation.vetting(change.change, beside, pace)) is not None:
                yield from steps
