"""Several writes as one operation: those of a batch, and writes that were made elsewhere before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from msgspec import Struct

from shoal.protocol.base import ObjectWrite, Reply, Write
from shoal.protocol.declared import Natural, Writes, declaration_of
from shoal.protocol.requests.families import operations, replies, union

__all__ = ["Batch", "BatchAnswer", "BatchReply", "BatchWrite", "Import", "ImportReply", "Imported", "ImportedWrite"]

if TYPE_CHECKING:
    BatchWrite = ObjectWrite[Any]
    BatchAnswer = Reply
    ImportedWrite = ObjectWrite[Any]
    ImportedAnswer = Reply
else:
    _WRITES = [kind for kind in operations(ObjectWrite) if declaration_of(kind).batch]
    BatchWrite = union(_WRITES)
    BatchAnswer = union(replies(_WRITES))
    ImportedWrite = union(operations(ObjectWrite))
    ImportedAnswer = union(replies(operations(ObjectWrite)))


@final
class Batch(Write["BatchReply"], array_like=True, frozen=True, tag="batch"):
    """Apply writes as one operation, all or none. Their objects must share a partition."""

    writes: Writes[BatchWrite]


class BatchReply(Reply, array_like=True, frozen=True, tag="batch-reply"):
    """The replies to the writes, in their order."""

    replies: list[BatchAnswer]


class Imported(Struct, array_like=True, frozen=True):
    """A write that was made elsewhere before."""

    write: ImportedWrite
    time_ms: Natural = 0  # When; 0: now. A time that is still to come is now, too.
    key: str = ""  # Of writes to one object with the same key one counts, for as long as the object keeps keys.
    nonce: bytes = b""  # Of a checkpoint that is saved: with its own it gets the id that it had. Empty: the key.
    id: str = ""  # The id that the checkpoint had. If it gets another one, nothing is written. Empty: it gets any.


@final
class Import(Write["ImportReply"], array_like=True, frozen=True, tag="import"):
    """Apply writes that were made elsewhere before as one operation, all or none. Their objects must share a partition.

    Each is shown with the time that it had. A checkpoint may name parents that are not there, and one that is there is not
    saved again. A write does not tell the journal of itself: the journal was told there, and is imported too.
    """

    writes: Writes[Imported]


class ImportReply(Reply, array_like=True, frozen=True, tag="import-reply"):
    """The replies to the writes, in their order."""

    replies: list[ImportedAnswer]
