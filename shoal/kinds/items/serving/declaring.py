"""Requests that declare and drop indexes of fields of items, and the list of them."""

from __future__ import annotations

from shoal.config import Config
from shoal.errors import InvalidInput, TooLarge
from shoal.kinds.items.serving.indexes import Indexes
from shoal.kinds.items.state import indexes
from shoal.names import check_label, check_name
from shoal.node.handler import Checks, Readers, View, WriteContext, Writers
from shoal.protocol.requests import IndexItems, ItemIndex, ItemIndexes, ItemsIndexed, ListItemIndexes, UnindexItems


class Declaring:
    """The handler of `IndexItems`, `UnindexItems` and `ListItemIndexes`."""

    def __init__(self, config: Config, standings: Indexes) -> None:
        self._config = config
        self._standings = standings
        self.checks: Checks = {IndexItems: self._check, UnindexItems: self._check}
        self.writers: Writers = {IndexItems: self._index, UnindexItems: self._unindex}
        self.readers: Readers = {ListItemIndexes: self._list}

    def _check(self, request: IndexItems | UnindexItems) -> None:
        check_label(request.items)
        if not 1 <= len(request.fields) <= self._config.item_indexes_max:
            raise InvalidInput(
                f"1 to {self._config.item_indexes_max} fields can be indexed at once; got {len(request.fields)}. "
                "Nothing was written."
            )
        for field in request.fields:
            check_name("field", field)

    def _index(self, context: WriteContext, request: IndexItems) -> ItemsIndexed:
        """Declare indexes; the reply names the fields that were not indexed before. They are built in the background.

        Raises:
            TooLarge: more than `item_indexes_max` fields would be indexed.
        """
        there = set(indexes.fields(context.rows))
        new = tuple(field for field in dict.fromkeys(request.fields) if field not in there)
        if len(there) + len(new) > self._config.item_indexes_max:
            raise TooLarge(
                f"{len(there)} fields of the items under {request.items!r} are indexed; at most "
                f"{self._config.item_indexes_max} can be. Nothing was written. Drop an index that no search uses."
            )
        if not new:
            return ItemsIndexed([])
        change = indexes.Declare(new)
        context.apply(change)
        return ItemsIndexed(list(new))

    def _unindex(self, context: WriteContext, request: UnindexItems) -> ItemsIndexed:
        named = [(field, indexes.seen(context.rows, field)) for field in dict.fromkeys(request.fields)]
        there = tuple((field, seen) for field, seen in named if seen)
        if not there:
            return ItemsIndexed([])
        change = indexes.Drop(there)
        context.apply(change)
        return ItemsIndexed([field for field, _ in there])

    def _list(self, view: View, request: ListItemIndexes) -> ItemIndexes:
        check_label(request.items)
        standings = self._standings.of(view.target)
        return ItemIndexes(
            [ItemIndex(field, field in standings and standings[field].built) for field in indexes.fields(view.rows)]
        )
