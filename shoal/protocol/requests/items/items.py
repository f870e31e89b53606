"""Memory items. `items` is the first label of their namespace, `rest` the labels after it.

An item's version is opaque; NO_ITEM is that of one which is not there, or has expired.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from shoal.protocol.requests.base import ObjectRead, ObjectWrite, Reply
from shoal.protocol.requests.declared import operation

__all__ = [
    "NO_ITEM",
    "DeleteItem",
    "GetItems",
    "Item",
    "ItemDeleted",
    "ItemPut",
    "ItemSibling",
    "ItemsFound",
    "ItemsPage",
    "ItemsRefreshed",
    "ItemsSwept",
    "ListNamespaces",
    "Match",
    "Namespaces",
    "PutItem",
    "RankItems",
    "Ranked",
    "RankedItems",
    "RefreshItems",
    "SearchItems",
    "SearchPlan",
    "SweepItems",
]

NO_ITEM = ""

Match = Literal["prefix", "suffix"]


@operation(batch=True)
class PutItem(ObjectWrite["ItemPut"], array_like=True, frozen=True, tag="put-item"):
    """Put a value in the place of what the serving node shows.

    `ttl_ms`: how long it is shown; None: for ever. `expect`: the item's version must be this one. `vectors`: what
    `RankItems` compares, each some 32-bit floats, little-endian.
    """

    items: str
    rest: list[str]
    key: str
    value: bytes
    ttl_ms: int | None = None
    expect: str | None = None
    vectors: list[bytes] = field(default_factory=list)


class ItemPut(Reply, array_like=True, frozen=True, tag="item-put"):
    version: str


@operation(batch=True)
class DeleteItem(ObjectWrite["ItemDeleted"], array_like=True, frozen=True, tag="delete-item"):
    """Delete what the serving node shows."""

    items: str
    rest: list[str]
    key: str
    expect: str | None = None


class ItemDeleted(Reply, array_like=True, frozen=True, tag="item-deleted"):
    deleted: bool  # False if it was not there.


class RefreshItems(ObjectWrite["ItemsRefreshed"], array_like=True, frozen=True, tag="refresh-items"):
    """Let the times to live of items begin anew. One without any, or not there, is left out."""

    items: str
    paths: list[tuple[list[str], str]]  # Rest and key.


class ItemsRefreshed(Reply, array_like=True, frozen=True, tag="items-refreshed"):
    refreshed: int


class SweepItems(ObjectWrite["ItemsSwept"], array_like=True, frozen=True, tag="sweep-items"):
    """Erase items that expired longer than the node's grace ago, up to its bound."""

    items: str


class ItemsSwept(Reply, array_like=True, frozen=True, tag="items-swept"):
    erased: int
    more: bool


@operation(multi_read=True)
class GetItems(ObjectRead["ItemsFound"], array_like=True, frozen=True, tag="get-items"):
    """Read items by their keys."""

    items: str
    paths: list[tuple[list[str], str]]  # Rest and key.


class ItemSibling(Struct, array_like=True, frozen=True):
    value: bytes
    wall_ms: int


class Item(Struct, array_like=True, frozen=True):
    namespace: list[str]  # Whole.
    key: str
    value: bytes
    version: str
    created_ms: int
    updated_ms: int
    expires_ms: int | None = None
    siblings: list[ItemSibling] = field(
        default_factory=list
    )  # Values that were put concurrently, and that no write has seen since.


class ItemsFound(Reply, array_like=True, frozen=True, tag="items-found"):
    items: list[Item | None]  # In the order of the paths; of fewer if these are more than a page: ask for the rest.


@operation(multi_read=True)
class SearchItems(ObjectRead["ItemsPage"], array_like=True, frozen=True, tag="search-items"):
    """Items of a namespace and those below it, in the order of (namespace, key).

    `filter` is a packed map; no bytes match all. `skip` leaves out the first ones that match. `explain`: say how.
    All `matches` must hold, of whole namespaces; "*" is any label.
    """

    items: str
    rest: list[str]
    filter: bytes = b""
    limit: int = 100
    skip: int = 0
    after: bytes = b""  # A cursor of an earlier reply.
    explain: bool = False
    matches: list[tuple[Match, list[str]]] = field(default_factory=list)


class SearchPlan(Struct, array_like=True, frozen=True):
    """How a page was found: by a `scan` of all items, by a `lookup` of what an index lists, or by a `stream` of it in order."""

    how: Literal["scan", "lookup", "stream"]
    field: str  # Whose index; empty for a scan.
    index_rows: int  # That were read.
    item_rows: int


class ItemsPage(Reply, array_like=True, frozen=True, tag="items-page"):
    items: list[Item]
    skipped: int
    cursor: bytes
    more: bool  # Ask again with `cursor`; a page may be empty and yet not the last.
    plan: SearchPlan | None = None


class RankItems(ObjectRead["RankedItems"], array_like=True, frozen=True, tag="rank-items"):
    """Items of a namespace and those below it, by how near a vector of theirs is.

    Near is the cosine of the angle. Vectors of another length are not compared. `skip` leaves out the nearest ones.
    """

    items: str
    rest: list[str]
    vector: bytes
    filter: bytes = b""
    limit: int = 10
    skip: int = 0
    matches: list[tuple[Match, list[str]]] = field(default_factory=list)


class Ranked(Struct, array_like=True, frozen=True):
    item: Item
    score: float  # -1 to 1, of its nearest vector.


class RankedItems(Reply, array_like=True, frozen=True, tag="ranked-items"):
    items: list[Ranked]  # The nearest first; of those as near in the order of (namespace, key).
    more: bool  # Fewer than were asked for, for their size: ask for the rest.
    compared: int  # Vectors.


class ListNamespaces(ObjectRead["Namespaces"], array_like=True, frozen=True, tag="list-namespaces"):
    """Namespaces that hold items, in order.

    All `matches` must hold, of whole namespaces; "*" is any label. `depth_max` cuts what is longer, and lists it once.
    """

    items: str
    matches: list[tuple[Match, list[str]]] = field(default_factory=list)
    depth_max: int | None = None
    limit: int = 100
    after: bytes = b""


class Namespaces(Reply, array_like=True, frozen=True, tag="namespaces"):
    namespaces: list[list[str]]
    cursor: bytes
    more: bool
