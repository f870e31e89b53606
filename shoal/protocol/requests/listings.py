"""Listings of spaces, objects and threads."""

from __future__ import annotations

from typing import Literal, get_args

from msgspec import field

from shoal.protocol.base import Read, Reply
from shoal.protocol.declared import Http, operation
from shoal.protocol.fields import Filtered, Positive

__all__ = ["ListObjects", "ListSpaces", "ListThreads", "Names", "ObjectKind", "ThreadNames"]

ObjectKind = Literal["thread", "document", "counter", "register", "items", "schema", "set", "budget", "map"]


def _listing(kind: ObjectKind) -> Http:
    plural = kind if kind == "items" else f"{kind}s"
    return Http("GET", f"/{plural}", f"List {plural}", sets={"kind": kind})


@operation(http=tuple(_listing(kind) for kind in get_args(ObjectKind) if kind != "thread"))  # `ListThreads` lists those.
class ListObjects(Read["Names"], array_like=True, frozen=True, tag="list-objects"):
    """List the names of a space's objects of one kind, in byte order."""

    space: str
    kind: ObjectKind
    prefix: str = ""
    after: str | None = None
    limit: Positive = 1000


@operation(http=Http("GET", "/spaces", "List spaces"))
class ListSpaces(Read["Names"], array_like=True, frozen=True, tag="list-spaces"):
    """List the names of spaces."""

    after: str | None = None
    limit: Positive = 1000


class Names(Reply, array_like=True, frozen=True, tag="names"):
    """A page of names."""

    names: list[str]  # In byte order.
    more: bool  # Ask again with after=names[-1].


@operation(family="thread", http=Http("GET", "/threads", "List threads, by status and metadata"))
class ListThreads(Read["ThreadNames"], array_like=True, frozen=True, tag="list-threads"):
    """List threads by status and metadata, in byte order. A page may be empty although there are more."""

    space: str
    status: Literal["", "running", "paused", "waiting", "done", "failed"] = ""  # Empty for any status.
    prefix: str = ""
    filter: Filtered = field(default_factory=dict)  # Field → packed condition on the metadata of the head of `main`.
    after: str | None = None
    limit: Positive = 1000


class ThreadNames(Reply, array_like=True, frozen=True, tag="thread-names"):
    """A page of threads."""

    names: list[str]  # In byte order.
    after: str  # Ask again with this; empty if there are no more.

    @property
    def more(self) -> bool:
        """Whether there may be more threads: ask again with `after`."""
        return bool(self.after)
