"""Which objects there are."""

from __future__ import annotations

from typing import Literal

from shoal.protocol.requests.base import Read, Reply

ObjectKind = Literal["thread", "document", "counter", "register", "items", "schema"]


class ListObjects(Read, array_like=True, frozen=True, tag="list-objects"):
    """Names in byte order; answered by `Names`."""

    space: str
    kind: ObjectKind
    prefix: str = ""
    after: str | None = None
    limit: int = 1000


class ListSpaces(Read, array_like=True, frozen=True, tag="list-spaces"):
    """Answered by `Names`."""

    after: str | None = None
    limit: int = 1000


class Names(Reply, array_like=True, frozen=True, tag="names"):
    names: list[str]
    more: bool
