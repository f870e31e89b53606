"""Searches of items: the plan, and its execution page by page.

Searches of items, page by page.

Laws:
- A page reads a bounded number of rows and bytes, and says where the next page begins. It is read in steps, between which
  others get their turn; so an item that is written meanwhile may be shown as it was or as it is. If the index that is read is
  dropped meanwhile, the rest of the page is planned anew.
- Items are in the order of (namespace, key), whether an index or a scan found them. The filter is
  applied to all of them, so that an index changes only how much is read.

The plan of a search: the rows of an index that it reads, or all items of its namespace.

Laws:
- A plan finds at least all matches; the filter is applied to every item that it reads.
- Paths are in the order of (namespace, key) under every plan.
- An index is used if it is built here and the filter bounds its field by a number or a text.
  The first such index with few rows (`ITEM_PROBE_ROWS_MAX`) is used, and all its items are looked
  up; else the first whose exact value is given, in the order of paths; else the first with no
  more rows than a page reads. If there is none of these, the items are scanned.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Literal

from msgspec.structs import replace

from shoal.config import Config
from shoal.crdt.rows import successor
from shoal.kinds.items import state as items
from shoal.kinds.items.serving.indexes import Indexes, Standings, values_of
from shoal.kinds.items.serving.items import ITEM_SCAN_ROWS_MAX, check_matches, check_namespace, fits, told
from shoal.kinds.items.state import labels_of
from shoal.node.handler import Checks, Readers, Scans, View, Writers
from shoal.node.naming import PAGE_BYTES_MAX
from shoal.node.transaction import Transaction
from shoal.node.turns import Stride
from shoal.protocol import requests
from shoal.protocol.base import FILTER_TERMS_MAX
from shoal.protocol.requests import ItemsPage, SearchItems, SearchPlan
from shoal.records import NamedTuple
from shoal.values.filtering import Filter
from shoal.values.forms import NUMBER, OTHER, TEXT, length, of_plain

ITEM_PROBE_ROWS_MAX = 256  # Index rows that a search reads to decide whether the index is selective.

How = Literal["scan", "lookup", "stream"]

_PLAIN = (bool, int, float, str)
_AFTER = {NUMBER: TEXT, TEXT: b"\x03"}  # Above all values of the class.


class Span(NamedTuple):
    """A range of values that may match, in the form of `shoal.values.forms`: `low` ≤ value < `high`."""

    low: bytes
    high: bytes
    exact: bytes | None = None  # The only one, if there is one.


class Plan:
    """How a search finds items, and the number of rows read so far. `field` is that of the index, empty for a scan."""

    def __init__(
        self, how: How, field: str, index_rows: int, paths: Callable[[Plan, SearchScope], Iterator[bytes]] | None
    ) -> None:
        self.how = how
        self.field = field
        self.index_rows = index_rows
        self.item_rows = 0
        self._paths = paths

    def paths(self, place: SearchScope) -> Iterator[bytes] | None:
        """The paths of the items to read there, in order; None for all items."""
        return None if self._paths is None else self._paths(self, place)


class SearchScope(NamedTuple):
    """The items that a search covers: those of a namespace after a path."""

    transaction: Transaction
    prefix: bytes  # Of the rows of their object's current generation.
    rest: Sequence[str]
    after: bytes


def plan(place: SearchScope, wanted: Mapping[str, Any], standings: Standings) -> Plan:
    """Choose a plan, as the laws say. `wanted` are a filter's conditions by field. It may read rows of several indexes."""
    spans = {
        field: span
        for field, condition in wanted.items()
        if field in standings and standings[field].built and (span := span_of(condition)) is not None
    }
    read = 0
    for field, span in spans.items():
        paths = _gathered(place, field, span, ITEM_PROBE_ROWS_MAX)
        read += len(paths)
        if len(paths) < ITEM_PROBE_ROWS_MAX:
            return _lookup(place, field, read, paths)
    for field, span in spans.items():
        if span.exact is not None:
            return _stream(field, read, span.exact)
    for field, span in spans.items():
        paths = _gathered(place, field, span, ITEM_SCAN_ROWS_MAX)
        read += len(paths)
        if len(paths) < ITEM_SCAN_ROWS_MAX:
            return _lookup(place, field, read, paths)
    return Plan("scan", "", read, None)


def span_of(condition: Any) -> Span | None:
    """The values that a condition allows; None if an index cannot find them, or if it bounds nothing."""
    operators = condition if isinstance(condition, dict) else {"$eq": condition}
    low, high, exact = b"", b"\xff", None
    bounded = False
    for name, operand in operators.items():
        value = of_plain(operand) if type(operand) in _PLAIN else OTHER
        if value == OTHER or name not in ("$eq", "$gt", "$gte", "$lt", "$lte"):
            continue  # This operator sets no bound; another may.
        bounded = True
        first, above = value[:1], successor(value) or b"\xff"
        if name == "$eq":
            low, high, exact = max(low, value), min(high, above), value
        elif name in ("$gt", "$gte"):
            low, high = max(low, value), min(high, _AFTER[first])
        else:
            low, high = max(low, first), min(high, above)
    return Span(low, high, exact) if bounded else None


def _lookup(place: SearchScope, field: str, read: int, paths: list[bytes]) -> Plan:
    beginning = labels_of(place.rest)
    found = sorted({path for path in paths if path.startswith(beginning) and path > place.after})
    return Plan("lookup", field, read, lambda _, place: islice(found, bisect_right(found, place.after), None))


def _stream(field: str, read: int, exact: bytes) -> Plan:
    def paths(counting: Plan, place: SearchScope) -> Iterator[bytes]:
        rows = [_of_value(place, field, value) for value in (exact, OTHER)]
        for path in heapq.merge(*rows):
            counting.index_rows += 1
            yield path

    return Plan("stream", field, read, paths)


def _gathered(place: SearchScope, field: str, span: Span, limit: int) -> list[bytes]:
    """The paths whose values are in a span or have no order, at most `limit`; the paths are not sorted."""
    found: list[bytes] = []
    if span.exact is not None and span.low < span.high:
        found += islice(_of_value(place, field, span.exact), limit)
    elif span.low < span.high:
        prefix = values_of(place.prefix, field)
        size = len(prefix)
        rows = place.transaction.scan(prefix + span.low, prefix + span.high, limit=limit)
        found += [key[size + length(key[size:]) :] for key, _ in rows]
    found += islice(_of_value(place, field, OTHER), limit - len(found))
    return found


def _of_value(place: SearchScope, field: str, value: bytes) -> Iterator[bytes]:
    """The paths of a namespace whose items have this value, in order."""
    prefix = values_of(place.prefix, field) + value
    start = prefix + labels_of(place.rest)
    stop = successor(start)
    if place.after:
        start = max(start, prefix + place.after + b"\x00")
    if stop is not None and start < stop:
        for key, _ in place.transaction.scan(start, stop):
            yield key[len(prefix) :]


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
        check_namespace(request.items, request.rest)
        check_matches(request.matches)
        filter = Filter(request.filter, terms_max=FILTER_TERMS_MAX)
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
            self._indexes.due(view.target)  # Building it may have failed.
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
        self._now_ms = now_ms
        self._limit = min(max(1, request.limit), config.page_items_max)
        self._looked_at = 0
        self._bytes = 0

    def choose(self, view: View, standings: Standings) -> None:
        """Plan what is left of the page. The rows that were read before it still count."""
        before = self.chosen
        self.chosen = plan(_place(view, self._request, self.cursor), self._filter.wanted, standings)
        self.chosen.index_rows += before.index_rows
        self.chosen.item_rows += before.item_rows

    def can_go_on(self, standings: Standings) -> bool:
        """Whether the rows of an index that are still to be read are there. A lookup has read its own."""
        standing = standings.get(self.chosen.field)
        return self.chosen.how != "stream" or (standing is not None and standing.built)

    def step(self, view: View) -> bool:
        """Look at some more items. Returns whether there is more to be done."""
        stride = Stride.usual()
        for path, stored in self._stored(view):
            is_full = len(self.found) == self._limit or self._bytes >= PAGE_BYTES_MAX
            if is_full or self._looked_at == ITEM_SCAN_ROWS_MAX:
                self.more = True
                return False
            self.cursor = path
            self._looked_at += 1
            self._bytes += len(stored)
            self._look(view, path, stored)
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

    def _look(self, view: View, path: bytes, stored: bytes) -> None:
        """Most items do not match: the whole of one is decoded only if it does."""
        value = items.value_of(stored, self._now_ms)
        if value is None or not self._is_in(path) or not self._filter.matches(value):
            return
        if self.skipped < self._request.skip:
            self.skipped += 1
        else:
            item = items.of_row(path, stored)
            found = told(self._request.items, item)
            if self._request.vectors:
                found = replace(found, vectors=list(items.vectors_of(view.rows, path, item.latest)))
            self.found.append(found)

    def _is_in(self, path: bytes) -> bool:
        """Whether its namespace is one of those that are searched."""
        matches = self._request.matches
        return not matches or fits([self._request.items, *items.split_path(path)[0]], matches)


def _place(view: View, request: SearchItems, after: bytes) -> SearchScope:
    return SearchScope(view.transaction, view.rows.key(b""), request.rest, after)
