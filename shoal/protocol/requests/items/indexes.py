"""Indexes of the fields of items, of all whose namespaces begin with one label: `items`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct

from shoal.protocol.fields import Named
from shoal.protocol.requests.base import ObjectRead, ObjectWrite, Reply
from shoal.protocol.requests.declared import Http, operation

__all__ = ["IndexItems", "ItemIndex", "ItemIndexes", "ItemsIndexed", "ListItemIndexes", "UnindexItems"]


@operation(
    http=Http(
        "POST",
        "/items:index",
        "Have fields of all items below a first label indexed",
        example={"label": "memory", "fields": ["tea"]},
    )
)
class IndexItems(ObjectWrite["ItemsIndexed"], array_like=True, frozen=True, tag="index-items"):
    """Have these fields indexed, by every node."""

    items: Annotated[str, Named("label")]
    fields: list[str]  # "user.age" is a field within another.


@operation(http=Http("POST", "/items:unindex", "Give up the indexes of fields", example={"label": "memory", "fields": ["tea"]}))
class UnindexItems(ObjectWrite["ItemsIndexed"], array_like=True, frozen=True, tag="unindex-items"):
    """Give up the indexes of these fields."""

    items: Annotated[str, Named("label")]
    fields: list[str]  # "user.age" is a field within another.


class ItemsIndexed(Reply, array_like=True, frozen=True, tag="items-indexed"):
    changed: list[str]  # The fields that were not, or were, indexed before.


@operation(http=Http("GET", "/items:indexes", "The fields that are indexed"))
class ListItemIndexes(ObjectRead["ItemIndexes"], array_like=True, frozen=True, tag="list-item-indexes"):
    """List the fields that are indexed."""

    items: Annotated[str, Named("label")]


class ItemIndex(Struct, array_like=True, frozen=True):
    field: str
    built: bool  # On the node that answers: until then its searches scan.


class ItemIndexes(Reply, array_like=True, frozen=True, tag="item-indexes"):
    indexes: list[ItemIndex]
