"""The base classes of requests and replies."""

from __future__ import annotations

import sys
from functools import cache
from typing import ClassVar, ForwardRef, Generic, Literal, TypeVar, get_args

from msgspec import Struct

__all__ = [
    "NO_HEAD",
    "Deleted",
    "Durability",
    "Maintenance",
    "ObjectRead",
    "ObjectWrite",
    "R",
    "Read",
    "Reply",
    "Request",
    "Write",
    "reply_of",
]

Durability = Literal["memory", "local", "quorum", "all"]

NO_HEAD = ""
"""As `expect_head`, the branch must not exist yet. As `parent`, the checkpoint has none."""

R = TypeVar("R", covariant=True)
"""The reply to a request."""


class Request(Struct, Generic[R], array_like=True, frozen=True, tag=True):
    """Base of all requests. A request names its reply: `class Grant(ObjectWrite["Granted"], …)`."""


class Write(Request[R], Generic[R], array_like=True, frozen=True, tag=True):
    """A request that changes objects of one partition; it may be sent with an idempotency key."""


class Read(Request[R], Generic[R], array_like=True, frozen=True, tag=True):
    """A request that changes nothing."""


class ObjectWrite(Write[R], Generic[R], array_like=True, frozen=True, tag=True):
    """A write to one object, which its second field names."""

    space: str


class ObjectRead(Read[R], Generic[R], array_like=True, frozen=True, tag=True):
    """A read of one object, which its second field names."""

    space: str


class Maintenance(Request[R], Generic[R], array_like=True, frozen=True, tag=True):
    """A request that inspects one object, named by its second field, and changes it in as many operations as needed."""

    rests: ClassVar[bool] = False  # Whether it leaves most of the time to others: nobody waits for it.

    space: str


class Reply(Struct, array_like=True, frozen=True, tag=True):
    """Base of all replies and pushes."""


class Deleted(Reply, array_like=True, frozen=True, tag="deleted"):
    """The result of a deletion."""

    existed: bool  # Whether it existed on the serving node.


@cache
def reply_of(kind: type[Request[R]], /) -> type[R]:
    """The class of the reply to a kind of request."""
    [base] = kind.__orig_bases__  # type: ignore[attr-defined]
    [reply] = get_args(base)
    found: type[R] = getattr(sys.modules[kind.__module__], reply.__forward_arg__) if isinstance(reply, ForwardRef) else reply
    return found
