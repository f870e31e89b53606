"""Searches of items, page by page.

Laws:
- A page reads a bounded number of rows and bytes, and says where the next page begins.
- Items are in the order of (namespace, key), whether an index or a scan found them. The filter is
  applied to all of them, so that an index changes only how much is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from shoal.config import Config
from shoal.crdt.items import items
from shoal.node.handler import Checks, Readers, View, Writers
from shoal.node.items.indexes import Indexes, Standings
from shoal.node.items.items import check_matches, check_namespace, fits, told
from shoal.node.items.planning import Plan, SearchScope, plan
from shoal.protocol import requests
from shoal.protocol.requests import ItemsPage, SearchItems, SearchPlan
from shoal.values.filtering import Filter


class Searches:
    """The handler of `SearchItems`."""

    def __init__(self, config: Config, now_ms: Callable[[], int], indexes: Indexes) -> None:
        self._config = config
        self._now_ms = now_ms
        self._indexes = indexes
        self.checks: Checks = {}
        self.writers: Writers = {}
        self.readers: Readers = {SearchItems: self._search}

    def _search(self, view: View, request: SearchItems) -> ItemsPage:
        """A page of the items that match.

        Raises:
            InvalidInput: the namespace or the filter is not legal.
        """
        check_namespace(self._config, request.items, request.rest)
        check_matches(self._config, request.matches)
        filter = Filter(request.filter, terms_max=self._config.filter_terms_max)
        place = SearchScope(view.transaction, view.rows.key(b""), request.rest, request.after)
        chosen = plan(place, filter.wanted, self._standings(view, filter), self._config)
        found: list[requests.Item] = []
        skipped, cursor, more = 0, request.after, False
        limit = min(max(1, request.limit), self._config.page_items_max)
        now_ms = self._now_ms()
        for path, item in self._page(view, request, chosen):
            if item is None or len(found) == limit:
                more = True
                break
            cursor = path
            if item.is_expired(now_ms) or not fits([request.items, *item.rest], request.matches):
                continue
            if not filter.matches(item.latest.value):
                continue
            if skipped < request.skip:
                skipped += 1
            else:
                found.append(told(request.items, item))
        how = SearchPlan(chosen.how, chosen.field, chosen.index_rows, chosen.item_rows) if request.explain else None
        return ItemsPage(found, skipped, cursor, more, how)

    def _standings(self, view: View, filter: Filter) -> Standings:
        standings = self._indexes.of(view.target) if filter.wanted else {}
        if not all(standing.built for standing in standings.values()):
            self._indexes.on_due(view.target)  # Building it may have failed.
        return standings

    def _page(self, view: View, request: SearchItems, chosen: Plan) -> Iterator[tuple[bytes, items.Item | None]]:
        """Paths and items in order; None instead of an item once the page's bound is reached."""
        size = 0
        for looked_at, (path, stored, item) in enumerate(self._items(view, request, chosen)):
            if looked_at == self._config.item_scan_rows_max or size >= self._config.page_bytes_max:
                yield b"", None
                return
            size += stored
            yield path, item

    def _items(self, view: View, request: SearchItems, chosen: Plan) -> Iterator[tuple[bytes, int, items.Item]]:
        paths = chosen.paths()
        if paths is None:
            for found in items.below(view.rows, request.rest, after=request.after):
                chosen.item_rows += 1
                yield found
            return
        for path in paths:
            chosen.item_rows += 1
            if (stored := view.rows.get(items.ITEM + path)) is not None:
                yield path, len(stored), items.of_row(path, stored)
