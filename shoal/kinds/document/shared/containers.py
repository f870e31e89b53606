"""Shared maps and arrays: pycrdt's, with Python's indices, and with values that are checked before the engine sees them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pycrdt

from shoal.kinds.document.shared.doc import check_put, shared
from shoal.kinds.document.shared.plain import check_key
from shoal.kinds.document.shared.positions import item, place, span, sticky

_ARRAY = "array"
_PLAIN = frozenset({str, int, float, bool, type(None)})


@shared
class Map(pycrdt.Map[Any]):
    """A shared map."""

    def __setitem__(self, key: str, value: Any) -> None:
        self._set(key, value)

    def _set(self, key: str, value: Any) -> None:
        check_key(key)
        super()._set(key, check_put(value, "map"))

    def put_grown(self, key: str, value: Any) -> None:
        """Set a value; dicts and lists become shared maps and arrays, at every level. The caller has checked that a document
        can hold them. No object of pycrdt's is made for each of them, which would take three times as long.
        """
        with self.doc.transaction() as transaction:
            self._forbid_read_transaction(transaction)
            _put(self.integrated, transaction._txn, key, value)

    def plain_of(self, keys: Iterable[str]) -> dict[str, Any]:
        """Of these keys those that have a text, number, bool or null as their value, and no shared type."""
        found = {}
        with self.doc.transaction() as transaction:
            get, has, inner = self.integrated.get, self.integrated.has, transaction._txn
            for key in keys:
                if has(inner, key):  # One with a mere format has no value.
                    value = get(inner, key)
                    if type(value) in _PLAIN:
                        found[key] = value
        return found

    def put_plain(self, entries: dict[str, Any]) -> None:
        """Set several keys to values that are no shared types. The caller has checked that a document can hold them."""
        if not entries:
            return
        with self.doc.transaction() as transaction:
            self._forbid_read_transaction(transaction)
            insert, inner = self.integrated.insert, transaction._txn
            for key, value in entries.items():
                insert(inner, key, value)

    def update(self, value: dict[str, Any]) -> None:
        """Set several keys (`pycrdt.Map.update`)."""
        with self.doc.transaction():
            for key, each in value.items():
                self._set(key, each)

    def _init(self, value: dict[str, Any] | None) -> None:
        # It was checked with all that it begins with, when it or what it is in was put into the document.
        for key, each in (value or {}).items():
            super()._set(key, each)


@shared
class Array(pycrdt.Array[Any]):
    """A shared array."""

    def _set(self, index: int, value: Any) -> None:
        super()._set(index, check_put(value, "array"))

    def _init(self, value: list[Any] | None) -> None:
        # As of a map.
        for index, each in enumerate(value or ()):
            super()._set(index, each)

    def insert_plain(self, index: int, elements: Sequence[Any]) -> None:
        """Insert elements that are no shared types, before the one at `index`, which is not negative. The caller has checked
        that a document can hold them.
        """
        with self.doc.transaction() as transaction:
            self._forbid_read_transaction(transaction)
            insert, inner = self.integrated.insert, transaction._txn
            for at, element in enumerate(elements, index):
                insert(inner, at, element)

    def _check_index(self, idx: Any) -> int:
        return item(idx, len(self), _ARRAY)

    def put_grown(self, index: int, value: Any) -> None:
        """Insert a value before the element at `index`, which is not negative. As `Map.put_grown`."""
        with self.doc.transaction() as transaction:
            self._forbid_read_transaction(transaction)
            _put(self.integrated, transaction._txn, index, value)

    def __getitem__(self, key: Any) -> Any:
        with self.doc.transaction():
            if isinstance(key, slice):
                return [super(Array, self).__getitem__(index) for index in range(*key.indices(len(self)))]
            return super().__getitem__(self._check_index(key))

    def __setitem__(self, key: Any, value: Any) -> None:
        with self.doc.transaction():
            if isinstance(key, slice):
                start, stop = span(key, len(self), _ARRAY)
                wanted = [check_put(each, "array") for each in value]
            else:
                start = self._check_index(key)
                stop, wanted = start + 1, [check_put(value, "array")]
            self._remove(start, stop)
            for index, each in enumerate(wanted, start):
                self._set(index, each)

    def __delitem__(self, key: Any) -> None:
        with self.doc.transaction():
            start, stop = span(key, len(self), _ARRAY) if isinstance(key, slice) else (self._check_index(key), None)
            self._remove(start, start + 1 if stop is None else stop)

    def _remove(self, start: int, stop: int) -> None:
        if start < stop:
            super().__delitem__(slice(start, stop))

    def insert(self, index: int, object: Any) -> None:
        """Insert an element before the one at `index`, or at the end.

        Raises:
            IndexError, TypeError: there is no such place.
            InvalidValue: a document cannot hold the value.
        """
        with self.doc.transaction():
            self._set(place(index, len(self), _ARRAY), object)

    def sticky_index(self, index: int, assoc: pycrdt.Assoc = pycrdt.Assoc.AFTER) -> pycrdt.StickyIndex:
        """A sticky index, as pycrdt makes it. The end of an array has nothing after it: use `Assoc.BEFORE` there. Raises as
        `insert`.
        """
        with self.doc.transaction():
            return super().sticky_index(sticky(index, len(self), assoc, _ARRAY), assoc)


def _put(into: Any, inner: Any, place: Any, value: Any) -> None:
    """Put a value into the engine's own map or array, within its transaction."""
    if isinstance(value, dict):
        entries = into.insert_map_prelim(inner, place)
        for key, each in value.items():
            _put(entries, inner, key, each)
    elif isinstance(value, list):
        elements = into.insert_array_prelim(inner, place)
        for index, each in enumerate(value):
            _put(elements, inner, index, each)
    else:
        into.insert(inner, place, value)
