"""Several writes as one operation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from shoal.protocol.base import ObjectWrite, Reply, Write
from shoal.protocol.declared import Writes, declaration_of
from shoal.protocol.requests.families import operations, replies, union

__all__ = ["Batch", "BatchAnswer", "BatchReply", "BatchWrite"]

if TYPE_CHECKING:
    BatchWrite = ObjectWrite[Any]
    BatchAnswer = Reply
else:
    _WRITES = [kind for kind in operations(ObjectWrite) if declaration_of(kind).batch]
    BatchWrite = union(_WRITES)
    BatchAnswer = union(replies(_WRITES))


@final
class Batch(Write["BatchReply"], array_like=True, frozen=True, tag="batch"):
    """Apply writes as one operation, all or none. Their objects must share a partition."""

    writes: Writes[BatchWrite]


class BatchReply(Reply, array_like=True, frozen=True, tag="batch-reply"):
    """The replies to the writes, in their order."""

    replies: list[BatchAnswer]
