"""Which objects there are."""

from __future__ import annotations

from typing import Literal

from msgspec import field

from shoal.protocol.requests.base import Read, Reply

__all__ = ["ListObjects", "ListSpaces", "ListThreads", "Names", "ObjectKind", "ThreadNames"]

ObjectKind = Literal["thread", "document", "counter", "register", "items", "schema", "set", "budget", "map"]


class ListObjects(Read["Names"], array_like=True, frozen=True, tag="list-objects"):
    """Names in byte order."""

    space: str
    kind: ObjectKind
    prefix: str = ""
    after: str | None = None
    limit: int = 1000


class ListSpaces(Read["Names"], array_like=True, frozen=True, tag="list-spaces"):
    """List spaces."""

    after: str | None = None
    limit: int = 1000


class Names(Reply, array_like=True, frozen=True, tag="names"):
    names: list[str]
    more: bool


class ListThreads(Read["ThreadNames"], array_like=True, frozen=True, tag="list-threads"):
    """Threads by status and metadata, in byte order. An answer may hold none and have more."""

    space: str
    status: str = ""  # Empty: any.
    prefix: str = ""
    filter: dict[str, bytes] = field(default_factory=dict)  # Name → packed value, in the metadata of the head of `main`.
    after: str | None = None
    limit: int = 1000


class ThreadNames(Reply, array_like=True, frozen=True, tag="thread-names"):
    names: list[str]
    after: str  # Ask again with this; empty: there are no more.
