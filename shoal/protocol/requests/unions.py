"""All requests and all replies as types: base classes for type checkers, unions for decoders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

from shoal.protocol.base import ObjectWrite, Read, Reply, Request
from shoal.protocol.requests.batches import Batch, Import
from shoal.protocol.requests.families import operations, replies, union
from shoal.protocol.requests.fenced import Fenced, FencedWrite
from shoal.protocol.requests.multireads import MultiRead
from shoal.protocol.requests.subscriptions import Subscription

__all__ = ["AnyRead", "AnyReply", "AnyRequest", "AnyWrite", "space_of"]

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
