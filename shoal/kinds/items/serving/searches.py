"""Searches of items, page by page.

Laws:
- A page reads a bounded number of rows and bytes, and says where the next page begins. It is read in steps, between which
  others get their turn; so an item that is written meanwhile may be shown as it was or as it is. If the index that is read is
  dropped meanwhile, the rest of the page is planned anew.
- Items are in the order of (namespace, key), whether an index or a scan found them. The filter is
  applied to all of them, so that an index changes only how much is read.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator

from shoal.config import Config
from shoal.kinds.items.serving.indexes import Indexes, Standings
from shoal.kinds.items.serving.items import check_matches, check_namespace, fits, told
from shoal.kinds.items.serving.planning import Plan, SearchScope, plan
from shoal.kinds.items.state import items
from shoal.node.handler import Checks, Readers, Scans, View, Writers
from shoal.node.turns import Stride
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
        self.readers: Readers = {}
        self.scans: Scans = {SearchItems: self._search}

    def _search(self, view: Callable[[], View], request: SearchItems) -> Generator[None, None, ItemsPage]:
        """A page of the items that match, in steps.

        Raises:
            InvalidInput: the namespace or the filter is not legal.
        """
        check_namespace(self._config, request.items, request.rest)
        check_matches(self._config, request.matches)
        filter = Filter(request.filter, terms_max=self._config.filter_terms_max)
        search = _Search(request, filter, self._config, self._now_ms())
        search.choose(seen := view(), self._standings(seen, filter))
        while search.step(seen):
            yield
            seen = view()
            if not search.can_go_on(standings := self._standings(seen, filter)):
                search.choose(seen, standings)
        chosen = search.chosen
        how = SearchPlan(chosen.how, chosen.field, chosen.index_rows, chosen.item_rows) if request.explain else None
        return ItemsPage(search.found, search.skipped, search.cursor, search.more, how)

    def _standings(self, view: View, filter: Filter) -> Standings:
        standings = self._indexes.of(view.target) if filter.wanted else {}
        if not all(standing.built for standing in standings.values()):
            self._indexes.on_due(view.target)  # Building it may have failed.
        return standings


class _Search:
    """A page in the making: what was found up to the path `cursor`."""

    def __init__(self, request: SearchItems, filter: Filter, config: Config, now_ms: int) -> None:
        self.found: list[requests.Item] = []
        self.skipped = 0
        self.cursor = request.after
        self.more = False
        self.chosen = Plan("scan", "", 0, None)
        self._request = request
        self._filter = filter
        self._config = config
        self._now_ms = now_ms
        self._limit = min(max(1, request.limit), config.page_items_max)
        self._looked_at = 0
        self._bytes = 0

    def choose(self, view: View, standings: Standings) -> None:
        """Plan what is left of the page. The rows that were read before it still count."""
        before = self.chosen
        self.chosen = plan(_place(view, self._request, self.cursor), self._filter.wanted, standings, self._config)
        self.chosen.index_rows += before.index_rows
        self.chosen.item_rows += before.item_rows

    def can_go_on(self, standings: Standings) -> bool:
        """Whether the rows of an index that are still to be read are there. A lookup has read its own."""
        standing = standings.get(self.chosen.field)
        return self.chosen.how != "stream" or (standing is not None and standing.built)

    def step(self, view: View) -> bool:
        """Look at some more items. Returns whether there is more to be done."""
        stride = Stride.of(self._config)
        for path, stored in self._stored(view):
            is_full = len(self.found) == self._limit or self._bytes >= self._config.page_bytes_max
            if is_full or self._looked_at == self._config.item_scan_rows_max:
                self.more = True
                return False
            self.cursor = path
            self._looked_at += 1
            self._bytes += len(stored)
            self._look(path, stored)
            if stride.is_over(len(stored)):
                return True
        return False

    def _stored(self, view: View) -> Iterator[tuple[bytes, bytes]]:
        """The rows of the items that the plan finds after the cursor, in order."""
        request, chosen = self._request, self.chosen
        paths = chosen.paths(_place(view, request, self.cursor))
        if paths is None:
            for found in items.stored_below(view.rows, request.rest, after=self.cursor):
                chosen.item_rows += 1
                yield found
            return
        for path in paths:
            chosen.item_rows += 1
            if (stored := view.rows.get(items.ITEM + path)) is not None:
                yield path, stored

    def _look(self, path: bytes, stored: bytes) -> None:
        """Most items do not match: the whole of one is decoded only if it does."""
        value = items.value_of(stored, self._now_ms)
        if value is None or not self._is_in(path) or not self._filter.matches(value):
            return
        if self.skipped < self._request.skip:
            self.skipped += 1
        else:
            self.found.append(told(self._request.items, items.of_row(path, stored)))

    def _is_in(self, path: bytes) -> bool:
        """Whether its namespace is one of those that are searched."""
        matches = self._request.matches
        return not matches or fits([self._request.items, *items.split_path(path)[0]], matches)


def _place(view: View, request: SearchItems, after: bytes) -> SearchScope:
    return SearchScope(view.transaction, view.rows.key(b""), request.rest, after)
