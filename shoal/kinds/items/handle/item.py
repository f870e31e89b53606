"""An item as it was read, and the requests for one item.

Vectors of texts: the user's function, and the texts of a value that it gets.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from shoal import values
from shoal.errors import InvalidInput
from shoal.names import check_label
from shoal.protocol import requests
from shoal.values.forms import pack
from shoal.workflows.connection import as_duration_ms, moment

Namespace = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Item:
    """An item as it was read. If values were put concurrently, it has the latest; the others are its `siblings`."""

    namespace: Namespace
    key: str
    version: str  # For `expect`; it changes with the value.
    created: datetime
    updated: datetime
    expires: datetime | None
    _value: bytes = field(repr=False)
    _siblings: tuple[bytes, ...] = field(repr=False)
    score: float | None = None  # In a search by meaning, how near it is: -1 to 1.

    @property
    def value(self) -> Any:
        """The item's value, decoded again at each access.

        Raises:
            InvalidValue: its type is not registered here.
        """
        return values.decode(self._value)

    @property
    def siblings(self) -> list[Any]:
        """Values that were put concurrently and that no later put or delete has seen; the latest first."""
        return [values.decode(sibling) for sibling in self._siblings]


@dataclass(frozen=True, slots=True)
class ItemChange:
    """A durable put or delete of an item, or the deletion of all items below a first label."""

    namespace: Namespace
    key: str  # Empty if all items were deleted.
    what: str  # "put-item", "delete-item", or "delete" if all items were deleted.
    time: datetime


@dataclass(frozen=True, slots=True)
class Explanation:
    """How a search found its items: by a `scan` of all items below the namespace, by a `lookup` of those that the index
    of a field lists, or by a `stream` of that index in order; and how many rows were read."""

    how: str
    field: str | None
    index_rows: int
    item_rows: int


def put_request(
    space: str,
    namespace: Sequence[str],
    key: str,
    value: Any,
    *,
    ttl: timedelta | float | None = None,
    expect: str | None = None,
    vectors: Sequence[Sequence[float]] = (),
) -> requests.PutItem:
    """The request that puts an item."""
    label, rest = split(namespace)
    packed = values.encode(value, where="value")
    ttl_ms = as_duration_ms(ttl, what="ttl")
    if ttl_ms is not None and ttl_ms < 1:
        raise InvalidInput(
            f"a time to live must be at least 1 ms; got {ttl}. Nothing was written. Use None for items that never expire."
        )
    found_by = [pack(vector, where=f"vectors[{nth}]") for nth, vector in enumerate(vectors)]
    return requests.PutItem(space, label, rest, key, packed, ttl_ms, expect, found_by)


def delete_request(space: str, namespace: Sequence[str], key: str, *, expect: str | None = None) -> requests.DeleteItem:
    """The request that deletes an item."""
    label, rest = split(namespace)
    return requests.DeleteItem(space, label, rest, key, expect)


def split(namespace: Sequence[str]) -> tuple[str, list[str]]:
    """The first label of a namespace, and the others.

    Raises:
        InvalidName: a label is not legal.
        InvalidInput: it is not a sequence of labels, or it is empty.
    """
    if isinstance(namespace, str) or not namespace:
        raise InvalidInput(
            "a namespace must be a tuple of one or more labels, such as ('memory', 'user-1'); got "
            f"{namespace!r}. Nothing was written."
        )
    first, *rest = map(check_label, namespace)
    return first, rest


def only(namespace: Sequence[str]) -> str:
    """The only label of a namespace.

    Raises:
        InvalidInput: it has more labels.
    """
    label, rest = split(namespace)
    if rest:
        raise InvalidInput(
            f"an index covers all items under a first label: give only that label, such as ({label!r},). Nothing was written."
        )
    return label


def matching(prefix: Sequence[str] | None, suffix: Sequence[str] | None) -> list[tuple[requests.Match, list[str]]]:
    """The conditions on namespaces as requests carry them.

    Raises:
        InvalidInput: one of them is a text rather than a sequence of labels.
    """
    wanted: tuple[tuple[requests.Match, Sequence[str] | None], ...] = (("prefix", prefix), ("suffix", suffix))
    for match, labels in wanted:
        if isinstance(labels, str):
            raise InvalidInput(f"a {match} must be a tuple of labels, such as ('memory', '*'); got {labels!r}.")
    return [(match, list(labels)) for match, labels in wanted if labels]


def packed_filter(filter: Mapping[str, Any] | None) -> bytes:
    """The fields of a filter, packed."""
    if filter is not None and not isinstance(filter, Mapping):
        raise InvalidInput(f"a filter must be a map of fields; got a {type(filter).__name__}.")
    return values.encode(dict(filter), where="filter") if filter else b""


def shown(item: requests.Item, score: float | None = None) -> Item:
    """An item as handles show it."""
    return Item(
        tuple(item.namespace),
        item.key,
        item.version,
        moment(item.created_ms),
        moment(item.updated_ms),
        None if item.expires_ms is None else moment(item.expires_ms),
        item.value,
        tuple(sibling.value for sibling in item.siblings),
        score,
    )


Vectors = Sequence[Sequence[float]]
Embed = Callable[[list[str]], Vectors | Awaitable[Vectors]]


class Embedding:
    """A function that makes vectors of texts, and the fields of an item whose texts it gets."""

    def __init__(self, embed: Embed, fields: Sequence[str] | None) -> None:
        self._embed = embed
        self._fields = fields

    async def of_value(self, value: Any) -> Vectors:
        """One vector for each text that the value has."""
        texts = [_text(value)] if self._fields is None else [text for name in self._fields for text in _texts(value, name)]
        return await self._vectors(texts) if texts else []

    async def of_query(self, query: str) -> Sequence[float]:
        """The vector of a query."""
        return (await self._vectors([query]))[0]

    async def _vectors(self, texts: list[str]) -> Vectors:
        """Call the function.

        Raises:
            InvalidInput: it did not return one vector for each text.
        """
        made = self._embed(texts)
        vectors = await made if inspect.isawaitable(made) else made
        if len(vectors) != len(texts):
            raise InvalidInput(f"`embed` returned {len(vectors)} vectors for {len(texts)} texts. Nothing was written.")
        return vectors


def _texts(value: Any, name: str) -> list[str]:
    """The text of a field; empty if the value has no such field."""
    for step in [name] if isinstance(value, dict) and name in value else name.split("."):
        if not isinstance(value, dict) or value.get(step) is None:
            return []
        value = value[step]
    return [_text(value)]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(values.to_json(value), sort_keys=True, ensure_ascii=False)
