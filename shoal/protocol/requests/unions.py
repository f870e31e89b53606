"""All requests and all replies as types: base classes for type checkers, unions for decoders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

from shoal.protocol.requests.base import ObjectWrite, Read, Reply, Request
from shoal.protocol.requests.batches import Batch
from shoal.protocol.requests.families import operations, replies, union
from shoal.protocol.requests.fenced import FencedWrite
from shoal.protocol.requests.subscriptions import Subscription

__all__ = ["AnyRead", "AnyReply", "AnyRequest", "AnyWrite"]

if TYPE_CHECKING:
    AnyRequest = Request[Any]
    AnyWrite = ObjectWrite[Any] | Batch
    AnyRead = Read[Any]
    AnyReply = Reply
else:
    _CALLS = [kind for kind in operations() if kind not in get_args(Subscription)]
    AnyRequest = union(_CALLS)
    AnyWrite = FencedWrite
    AnyRead = union(kind for kind in _CALLS if issubclass(kind, Read))
    AnyReply = union(replies(_CALLS))
