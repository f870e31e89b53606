"""Indexes of the fields of items, of all whose namespaces begin with one label: `items`."""

from __future__ import annotations

from msgspec import Struct

from shoal.protocol.requests.base import ObjectRead, ObjectWrite, Reply

__all__ = ["IndexItems", "ItemIndex", "ItemIndexes", "ItemsIndexed", "ListItemIndexes", "UnindexItems"]


class IndexItems(ObjectWrite["ItemsIndexed"], array_like=True, frozen=True, tag="index-items"):
    """Have these fields indexed, by every node."""

    items: str
    fields: list[str]


class UnindexItems(ObjectWrite["ItemsIndexed"], array_like=True, frozen=True, tag="unindex-items"):
    """Give up the indexes of these fields."""

    items: str
    fields: list[str]


class ItemsIndexed(Reply, array_like=True, frozen=True, tag="items-indexed"):
    changed: list[str]  # The fields that were not, or were, indexed before.


class ListItemIndexes(ObjectRead["ItemIndexes"], array_like=True, frozen=True, tag="list-item-indexes"):
    """List the fields that are indexed."""

    items: str


class ItemIndex(Struct, array_like=True, frozen=True):
    field: str
    built: bool  # On the node that answers: until then its searches scan.


class ItemIndexes(Reply, array_like=True, frozen=True, tag="item-indexes"):
    indexes: list[ItemIndex]
