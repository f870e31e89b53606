"""Listings of spaces, objects and threads."""

from __future__ import annotations

from typing import Literal

from msgspec import field

from shoal.protocol.fields import Filtered
from shoal.protocol.requests.base import Read, Reply
from shoal.protocol.requests.declared import operation

__all__ = ["ListObjects", "ListSpaces", "ListThreads", "Names", "ObjectKind", "ThreadNames"]

ObjectKind = Literal["thread", "document", "counter", "register", "items", "schema", "set", "budget", "map"]


class ListObjects(Read["Names"], array_like=True, frozen=True, tag="list-objects"):
    """List the names of a space's objects of one kind, in byte order."""

    space: str
    kind: ObjectKind
    prefix: str = ""
    after: str | None = None
    limit: int = 1000


class ListSpaces(Read["Names"], array_like=True, frozen=True, tag="list-spaces"):
    """List the names of spaces."""

    after: str | None = None
    limit: int = 1000


class Names(Reply, array_like=True, frozen=True, tag="names"):
    """A page of names."""

    names: list[str]
    more: bool


@operation(family="thread")
class ListThreads(Read["ThreadNames"], array_like=True, frozen=True, tag="list-threads"):
    """List threads by status and metadata, in byte order. A page may be empty although there are more."""

    space: str
    status: str = ""  # Empty for any status.
    prefix: str = ""
    filter: Filtered = field(default_factory=dict)  # Field → packed condition on the metadata of the head of `main`.
    after: str | None = None
    limit: int = 1000


class ThreadNames(Reply, array_like=True, frozen=True, tag="thread-names"):
    """A page of threads."""

    names: list[str]
    after: str  # Ask again with this; empty if there are no more.
