"""A write that carries the fencing numbers of leases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from shoal.kinds.lease.requests import Term
from shoal.protocol.base import ObjectWrite, Reply, Write
from shoal.protocol.declared import Elements
from shoal.protocol.requests.batches import Batch, Import
from shoal.protocol.requests.families import operations, replies, union

__all__ = ["Fenced", "FencedReply"]

if TYPE_CHECKING:
    FencedWrite = ObjectWrite[Any] | Batch
    FencedAnswer = Reply
else:
    _WRITES = [kind for kind in operations(Write) if kind is not Import]
    FencedWrite = union(_WRITES)
    FencedAnswer = union(replies(_WRITES))


@final
class Fenced(Write["FencedReply"], array_like=True, frozen=True, tag="fenced"):
    """A write under leases: a node accepts it only while it knows that they have not ended."""

    terms: Elements[Term]
    write: FencedWrite


class FencedReply(Reply, array_like=True, frozen=True, tag="fenced-reply"):
    """The reply to the write."""

    reply: FencedAnswer
