"""Memory items. `items` is the first label of their namespace, `rest` the labels after it.

An item's version is opaque; NO_ITEM is the version of an item that does not exist or has expired.

Indexes of items' fields: an index covers all items whose namespaces begin with one label, `items`.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Struct, field

from shoal.errors import InvalidInput, ItemChanged
from shoal.protocol.base import (
    Cli,
    Cursor,
    Deleted,
    Elements,
    Few,
    Http,
    Labels,
    Maintenance,
    Named,
    Natural,
    ObjectRead,
    ObjectWrite,
    Part,
    Positive,
    Reply,
    Seconds,
    Shape,
    Terms,
    Value,
    Vector,
    Would,
    always,
    operation,
)

__all__ = [
    "NO_ITEM",
    "DeleteItem",
    "DeleteItems",
    "DiscardItems",
    "EndItems",
    "GetItems",
    "IndexItems",
    "Item",
    "ItemDeleted",
    "ItemIndex",
    "ItemIndexes",
    "ItemPut",
    "ItemSibling",
    "ItemsDeleted",
    "ItemsDiscarded",
    "ItemsFound",
    "ItemsIndexed",
    "ItemsPage",
    "ItemsRefreshed",
    "ItemsSwept",
    "ListItemIndexes",
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
    "UnindexItems",
]

NO_ITEM = ""

Match = Literal["prefix", "suffix"]


def _place(namespace: list[str]) -> tuple[str, list[str]]:
    """The first label of a namespace, which decides the partition, and the others.

    Raises:
        InvalidInput: the namespace has no label.
    """
    if not namespace:
        raise InvalidInput("a namespace has one label or more. Nothing was written. `GET …/items` lists the first labels.")
    return namespace[0], namespace[1:]


def _paths(namespace: list[str], key: str) -> tuple[str, list[tuple[list[str], str]]]:
    first, rest = _place(namespace)
    return first, [(rest, key)]


_NAMESPACE = Part({"namespace": Labels}, ("items", "rest"), _place)
_FOUND = Part({"namespace": Labels, "key": str}, ("items", "paths"), _paths)


@operation(
    weighs=lambda request: len(request.value),
    batch=True,
    http=Http(
        "PUT",
        "/items/{namespace}/{key}",
        "Put an item",
        ops=("put-item",),
        errors=(ItemChanged,),
        example={"value": {"tea": True}, "ttl_s": 86_400},
        parts=(_NAMESPACE,),
    ),
    cli=Cli(
        "items put",
        """shoal items put memory.user-1 likes '{"colour": "blue"}' --url http://127.0.0.1:7400""",
        shows="version",
        help="Put an item, and print its version.",
        parts=(_NAMESPACE,),
    ),
)
class PutItem(ObjectWrite["ItemPut"], array_like=True, frozen=True, tag="put-item"):
    """Put a value, replacing the values that the serving node shows.

    `ttl_ms`: after so many ms it expires; None: never. `expect`: the version that the item must have. `vectors`: the
    vectors that `RankItems` compares, each as 32-bit floats, little-endian.
    """

    items: str
    rest: Labels
    key: str
    value: Value
    ttl_ms: Annotated[Seconds | None, Named("ttl_s")] = None  # After so long it expires.
    expect: str | None = None
    vectors: Few[Vector] = field(default_factory=list)  # The vectors that a ranking compares.
    created_ms: Annotated[int, Shape.INTERNAL] = 0  # Of one that is imported: when it was created.


class ItemPut(Reply, array_like=True, frozen=True, tag="item-put"):
    """The item's new version."""

    version: str


@operation(
    frees=True,
    removes=always,
    batch=True,
    http=Http(
        "DELETE",
        "/items/{namespace}/{key}",
        "Delete an item (no error if there is none)",
        ops=("delete-item",),
        errors=(ItemChanged,),
        parts=(_NAMESPACE,),
    ),
    would=Would(
        lambda request: (GetItems(request.space, request.items, [(request.rest, request.key)]),),
        lambda _, __, found: ItemDeleted(any(each is not None for each in found.items)),
    ),
    cli=Cli(
        "items delete",
        "shoal items delete memory.user-1 likes --yes --data ./state",
        shows="deleted",
        help="Delete an item, and print whether it was there.",
        parts=(_NAMESPACE,),
        destroys="Delete item {key} of {namespace}",
    ),
)
class DeleteItem(ObjectWrite["ItemDeleted"], array_like=True, frozen=True, tag="delete-item"):
    """Delete the values of an item that the serving node shows."""

    items: str
    rest: Labels
    key: str
    expect: str | None = None


class ItemDeleted(Reply, array_like=True, frozen=True, tag="item-deleted"):
    """The result of a deletion."""

    deleted: bool  # False if it did not exist.


@operation(
    action="write",
    http=Http("DELETE", "/items/{namespace}", "Delete all items of a namespace and those below it", parts=(_NAMESPACE,)),
    would=Would(
        lambda request: (SearchItems(request.space, request.items, request.rest, limit=1000),),
        lambda _, before, found: ItemsDeleted((before.deleted if before else 0) + len(found.items)),
        lambda read, reply: msgspec.structs.replace(read, after=reply.cursor) if reply.more else None,
    ),
    cli=Cli(
        "items delete-all",
        "shoal items delete-all memory.user-1 --yes --data ./state",
        shows="deleted",
        help="Delete all items of a namespace and those below it, and print their number. This cannot be undone.",
        parts=(_NAMESPACE,),
        destroys="Delete all items of {namespace}",
    ),
)
class DeleteItems(Maintenance["ItemsDeleted"], array_like=True, frozen=True, tag="delete-items"):
    """Delete all items of a namespace and of those below it.

    Below a first label alone, the object's generation ends: items put without knowledge of the deletion are deleted too, even
    if they arrive later, and so are the indexes. Otherwise the items that the serving node shows are deleted, a
    bounded number at a time, and items that are put meanwhile stay.
    """

    items: str
    rest: Labels


class ItemsDeleted(Reply, array_like=True, frozen=True, tag="items-deleted"):
    """The number of items that were deleted."""

    deleted: int


@operation(frees=True)
class DiscardItems(ObjectWrite["ItemsDiscarded"], array_like=True, frozen=True, tag="discard-items"):
    """A step of `DeleteItems`: delete the values of the next items that the serving node shows."""

    items: str
    rest: Labels
    after: bytes = b""  # The cursor of the previous reply.


class ItemsDiscarded(Reply, array_like=True, frozen=True, tag="items-discarded"):
    """The number of items that were deleted, and whether there may be more after the cursor."""

    deleted: int
    cursor: bytes
    more: bool


@operation(frees=True, removes=always)
class EndItems(ObjectWrite[Deleted], array_like=True, frozen=True, tag="end-items"):
    """A step of `DeleteItems`: end the generation of all items below a first label, with their indexes."""

    items: str


class RefreshItems(ObjectWrite["ItemsRefreshed"], array_like=True, frozen=True, tag="refresh-items"):
    """Restart the time to live of items. Items without one, and those that do not exist, are left out."""

    items: str
    paths: Elements[tuple[Labels, str]]  # Rest and key.


class ItemsRefreshed(Reply, array_like=True, frozen=True, tag="items-refreshed"):
    """The number of items whose time to live was restarted."""

    refreshed: int


@operation(frees=True)
class SweepItems(ObjectWrite["ItemsSwept"], array_like=True, frozen=True, tag="sweep-items"):
    """Erase a bounded number of items that expired longer ago than the node's grace period."""

    items: str


class ItemsSwept(Reply, array_like=True, frozen=True, tag="items-swept"):
    """The number of items that were erased, and whether there are more."""

    erased: int
    more: bool


@operation(
    multi_read=True,
    http=Http(
        "GET",
        "/items/{namespace}/{key}",
        "An item; its namespace is its labels, joined by periods",
        ops=("item",),
        parts=(_FOUND,),
        one="items",
    ),
    cli=Cli(
        "items get",
        "shoal items get memory.user-1 likes --data ./state",
        shows="value",
        help="Print an item's value; as JSON also its version and times.",
        parts=(_FOUND,),
        one="items",
    ),
)
class GetItems(ObjectRead["ItemsFound"], array_like=True, frozen=True, tag="get-items"):
    """Read items by their keys."""

    items: str
    paths: Elements[tuple[Labels, str]]  # Rest and key.


class ItemSibling(Struct, array_like=True, frozen=True):
    """A value that was put concurrently with the one shown."""

    value: Value
    wall_ms: int


class Item(Struct, array_like=True, frozen=True):
    """An item."""

    namespace: list[str]  # All labels.
    key: str
    value: Value
    version: str
    created_ms: int
    updated_ms: int
    expires_ms: int | None = None
    siblings: list[ItemSibling] = field(
        default_factory=list
    )  # Values that were put concurrently and that no later write has seen.
    vectors: Annotated[list[bytes], Shape.INTERNAL] = field(default_factory=list)  # If they were asked for.


class ItemsFound(Reply, array_like=True, frozen=True, tag="items-found"):
    """Items by their keys; None for one that does not exist or has expired."""

    items: list[Item | None]  # In the order of the paths. If they do not fit a page, there are fewer: ask for the rest.


@operation(
    multi_read=True,
    http=Http(
        "POST",
        "/items:search",
        "Items of a namespace and of those below it, by a filter",
        ops=("search",),
        example={"namespace": ["memory"], "filter": {"tea": True}},
        parts=(_NAMESPACE,),
    ),
)
class SearchItems(ObjectRead["ItemsPage"], array_like=True, frozen=True, tag="search-items"):
    """Find items of a namespace and of those below it, in the order of (namespace, key).

    `filter` is a packed map; if empty, all items match. `skip` leaves out the first matches. `explain`: include the plan.
    All `matches` of the whole namespace must hold; "*" is any label.
    """

    items: str
    rest: Labels
    filter: Annotated[bytes, Shape.VALUES] = b""
    limit: Positive = 100
    skip: Annotated[Natural, Named("offset")] = 0
    after: Cursor = b""  # The cursor of the previous reply.
    explain: bool = False  # Say how the page was found.
    matches: Terms[tuple[Match, Labels]] = field(default_factory=list)
    vectors: Annotated[bool, Shape.INTERNAL] = False  # With the vectors of the items, for an export.


class SearchPlan(Struct, array_like=True, frozen=True):
    """How a page was found: by a `scan` of all items, a `lookup` in an index, or a `stream` of an index in its order."""

    how: Literal["scan", "lookup", "stream"]
    field: str  # The field whose index was used; empty for a scan.
    index_rows: int  # Rows of the index that were read.
    item_rows: int


class ItemsPage(Reply, array_like=True, frozen=True, tag="items-page"):
    """A page of a search."""

    items: list[Item]
    skipped: int
    cursor: Cursor
    more: bool  # Ask again with `cursor`. A page may be empty and not the last.
    plan: SearchPlan | None = None


@operation(
    http=Http(
        "POST",
        "/items:rank",
        "Items of a namespace and of those below it, the nearest to a vector first",
        example={"namespace": ["memory"], "vector": [0.5, 0.25], "limit": 10},
        parts=(_NAMESPACE,),
    )
)
class RankItems(ObjectRead["RankedItems"], array_like=True, frozen=True, tag="rank-items"):
    """Rank items of a namespace and of those below it by their nearest vector.

    The measure is the cosine of the angle. Vectors of another length are not compared. `skip` leaves out the nearest ones.
    """

    items: str
    rest: Labels
    vector: Vector  # Items that have vectors of this length are compared.
    filter: Annotated[bytes, Shape.VALUES] = b""
    limit: Positive = 10
    skip: Annotated[Natural, Named("offset")] = 0
    matches: Terms[tuple[Match, Labels]] = field(default_factory=list)


class Ranked(Struct, array_like=True, frozen=True):
    """An item and how near it is."""

    item: Item
    score: float  # The cosine for its nearest vector, -1 to 1.


class RankedItems(Reply, array_like=True, frozen=True, tag="ranked-items"):
    """Items by how near they are."""

    items: list[Ranked]  # The nearest first; equally near ones in the order of (namespace, key).
    more: bool  # Whether there are fewer than requested because of their size: ask for the rest.
    compared: int  # How many vectors were compared.


@operation(http=Http("POST", "/items:namespaces", "Namespaces that hold items", example={"label": "memory"}))
class ListNamespaces(ObjectRead["Namespaces"], array_like=True, frozen=True, tag="list-namespaces"):
    """List namespaces that hold items, in order.

    All `matches` of the whole namespace must hold; "*" is any label. `depth_max` cuts longer namespaces, and lists each
    result once.
    """

    items: Annotated[str, Named("label")]
    matches: Terms[tuple[Match, Labels]] = field(default_factory=list)
    depth_max: Annotated[Positive | None, Named("max_depth")] = None
    limit: Positive = 100
    after: Cursor = b""


class Namespaces(Reply, array_like=True, frozen=True, tag="namespaces"):
    """A page of namespaces, each as all its labels."""

    namespaces: list[list[str]]
    cursor: Cursor
    more: bool


@operation(
    action="admin",
    http=Http(
        "POST",
        "/items:index",
        "Index fields of all items below a first label",
        example={"label": "memory", "fields": ["tea"]},
    ),
    cli=Cli(
        "items index",
        "shoal items index memory kind user.age --data ./state",
        shows="changed",
        help="Index fields of all items below a first label, and print those that were not indexed.",
    ),
)
class IndexItems(ObjectWrite["ItemsIndexed"], array_like=True, frozen=True, tag="index-items"):
    """Index these fields on every node."""

    items: Annotated[str, Named("label")]
    fields: Few[str]  # "user.age" is a field within another.


@operation(
    frees=True,
    action="admin",
    http=Http("POST", "/items:unindex", "Drop the indexes of fields", example={"label": "memory", "fields": ["tea"]}),
    cli=Cli(
        "items unindex",
        "shoal items unindex memory kind --data ./state",
        shows="changed",
        help="Drop the indexes of fields, and print those that were indexed. Searches still find all, more slowly.",
    ),
)
class UnindexItems(ObjectWrite["ItemsIndexed"], array_like=True, frozen=True, tag="unindex-items"):
    """Drop the indexes of these fields on every node."""

    items: Annotated[str, Named("label")]
    fields: Few[str]  # "user.age" is a field within another.


class ItemsIndexed(Reply, array_like=True, frozen=True, tag="items-indexed"):
    """The fields whose indexes were added or dropped."""

    changed: list[str]  # The fields that are now indexed and were not before, or the other way round.


@operation(
    http=Http("GET", "/items:indexes", "The indexed fields"),
    cli=Cli("items indexes", "shoal items indexes memory --data ./state", rows="indexes"),
)
class ListItemIndexes(ObjectRead["ItemIndexes"], array_like=True, frozen=True, tag="list-item-indexes"):
    """List the indexed fields."""

    items: Annotated[str, Named("label")]


class ItemIndex(Struct, array_like=True, frozen=True):
    """One index."""

    field: str
    built: bool  # Whether the serving node has built it; until then its searches scan.


class ItemIndexes(Reply, array_like=True, frozen=True, tag="item-indexes"):
    """All indexes below a label."""

    indexes: list[ItemIndex]
