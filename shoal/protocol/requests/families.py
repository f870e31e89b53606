"""All families of requests; the requests that hold others, as batches do; and the unions of all requests, for decoders."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, final, get_args

from msgspec import Struct

from shoal.kinds import modules
from shoal.kinds.lease.requests import Term
from shoal.protocol.base import (
    Elements,
    Natural,
    ObjectRead,
    ObjectWrite,
    Parts,
    Read,
    Reply,
    Request,
    Write,
    Writes,
    declaration_of,
    reply_of,
)
from shoal.protocol.requests import cluster, overviews, status
from shoal.protocol.requests.status import Subscription

__all__ = [
    "AnyRead",
    "AnyReply",
    "AnyRequest",
    "AnyWrite",
    "Batch",
    "BatchAnswer",
    "BatchReply",
    "BatchWrite",
    "Fenced",
    "FencedReply",
    "Import",
    "ImportReply",
    "Imported",
    "ImportedWrite",
    "MultiRead",
    "MultiReply",
    "PartAnswer",
    "PartRead",
    "Refused",
    "space_of",
]

_OWN = (cluster, overviews, status)
FAMILIES = (*(module for _, module in modules("requests")), *_OWN)


def operations(base: type[Request[Any]] = Request, /) -> list[type[Request[Any]]]:
    """All request classes below a base class, in the order of their tags."""
    ours = [child for child in base.__subclasses__() if child.__module__.startswith("shoal.")]
    found = [kind for child in ours for kind in (operations(child) if child.__subclasses__() else [child])]
    return sorted(found, key=lambda kind: str(kind.__struct_config__.tag))


def replies(kinds: Iterable[type[Request[Any]]], /) -> list[type[Reply]]:
    """The replies to these requests, each once."""
    return list(dict.fromkeys(map(reply_of, kinds)))


def union(kinds: Iterable[type], /) -> Any:
    """The union of these types, for a decoder."""
    return reduce(or_, kinds)


if TYPE_CHECKING:
    BatchWrite = ObjectWrite[Any]
    BatchAnswer = Reply
    ImportedWrite = ObjectWrite[Any]
    ImportedAnswer = Reply
else:
    _BATCHED = [kind for kind in operations(ObjectWrite) if declaration_of(kind).batch]
    BatchWrite = union(_BATCHED)
    BatchAnswer = union(replies(_BATCHED))
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


if TYPE_CHECKING:
    FencedWrite = ObjectWrite[Any] | Batch
    FencedAnswer = Reply
else:
    _FENCED = [kind for kind in operations(Write) if kind is not Import]
    FencedWrite = union(_FENCED)
    FencedAnswer = union(replies(_FENCED))


@final
class Fenced(Write["FencedReply"], array_like=True, frozen=True, tag="fenced"):
    """A write under leases: a node accepts it only while it knows that they have not ended."""

    terms: Elements[Term]
    write: FencedWrite


class FencedReply(Reply, array_like=True, frozen=True, tag="fenced-reply"):
    """The reply to the write."""

    reply: FencedAnswer


if TYPE_CHECKING:
    AnyRequest = Request[Any]
    AnyWrite = ObjectWrite[Any] | Batch | Import
    AnyRead = Read[Any]
    AnyReply = Reply
else:
    _CALLS = [kind for kind in operations() if kind not in get_args(Subscription)]
    AnyRequest = union(_CALLS)
    AnyWrite = FencedWrite
    AnyRead = union(kind for kind in _CALLS if issubclass(kind, Read))
    AnyReply = union(replies(_CALLS))


def space_of(request: Request[Any]) -> str | None:
    """The space that a request is about, which may not be checked yet; None if it is about none, or all of them."""
    space: str | None = getattr(request, "space", None)
    if space is None:
        kind = type(request)
        if kind is Batch:
            return request.writes[0].space if request.writes else None  # type: ignore[attr-defined]
        if kind is Import:
            return request.writes[0].write.space if request.writes else None  # type: ignore[attr-defined]
        if kind is MultiRead:
            return request.reads[0].space if request.reads else None  # type: ignore[attr-defined]
        if kind is Fenced:
            return space_of(request.write)  # type: ignore[attr-defined]
    return space
