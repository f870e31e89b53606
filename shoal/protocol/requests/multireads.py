"""Several reads as of one moment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from shoal.protocol.base import ObjectRead, Read, Reply
from shoal.protocol.declared import Parts, declaration_of
from shoal.protocol.requests.families import operations, replies, union

__all__ = ["MultiRead", "MultiReply", "PartAnswer", "PartRead", "Refused"]


class Refused(Reply, array_like=True, frozen=True, tag="refused"):
    """The error that one read alone would have had."""

    code: str
    message: str
    detail: dict[str, str | int | float | list[str] | None]


if TYPE_CHECKING:
    PartRead = ObjectRead[Any]
    PartAnswer = Reply
else:
    _READS = [kind for kind in operations(ObjectRead) if declaration_of(kind).multi_read]
    PartRead = union(_READS)
    PartAnswer = union([*replies(_READS), Refused])


@final
class MultiRead(Read["MultiReply"], array_like=True, frozen=True, tag="multi-read"):
    """Read objects of one partition at one vector, with no write between the reads."""

    reads: Parts[PartRead]


class MultiReply(Reply, array_like=True, frozen=True, tag="multi-reply"):
    """The replies to several reads."""

    replies: list[PartAnswer]  # In the order of the reads.
