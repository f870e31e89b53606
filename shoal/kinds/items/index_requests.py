"""Indexes of items' fields: an index covers all items whose namespaces begin with one label, `items`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct

from shoal.protocol.base import ObjectRead, ObjectWrite, Reply
from shoal.protocol.declared import Http, operation
from shoal.protocol.fields import Few, Named

__all__ = ["IndexItems", "ItemIndex", "ItemIndexes", "ItemsIndexed", "ListItemIndexes", "UnindexItems"]


@operation(
    action="admin",
    http=Http(
        "POST",
        "/items:index",
        "Index fields of all items below a first label",
        example={"label": "memory", "fields": ["tea"]},
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
)
class UnindexItems(ObjectWrite["ItemsIndexed"], array_like=True, frozen=True, tag="unindex-items"):
    """Drop the indexes of these fields on every node."""

    items: Annotated[str, Named("label")]
    fields: Few[str]  # "user.age" is a field within another.


class ItemsIndexed(Reply, array_like=True, frozen=True, tag="items-indexed"):
    """The fields whose indexes were added or dropped."""

    changed: list[str]  # The fields that are now indexed and were not before, or the other way round.


@operation(http=Http("GET", "/items:indexes", "The indexed fields"))
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
