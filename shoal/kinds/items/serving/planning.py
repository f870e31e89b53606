"""The plan of a search: the rows of an index that it reads, or all items of its namespace.

Laws:
- A plan finds at least all matches; the filter is applied to every item that it reads.
- Paths are in the order of (namespace, key) under every plan.
- An index is used if it is built here and the filter bounds its field by a number or a text.
  The first such index with few rows (`item_probe_rows_max`) is used, and all its items are looked
  up; else the first whose exact value is given, in the order of paths; else the first with no
  more rows than a page reads. If there is none of these, the items are scanned.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Literal

from shoal.config import Config
from shoal.crdt.rows import successor
from shoal.kinds.items.serving.indexes import Standings, values_of
from shoal.kinds.items.state.items import labels_of
from shoal.node.transaction import Transaction
from shoal.records import NamedTuple
from shoal.values.order import NUMBER, OTHER, TEXT, length, of_plain

How = Literal["scan", "lookup", "stream"]

_PLAIN = (bool, int, float, str)
_AFTER = {NUMBER: TEXT, TEXT: b"\x03"}  # Above all values of the class.


class Span(NamedTuple):
    """A range of values that may match, in the form of `shoal.values.order`: `low` ≤ value < `high`."""

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


def plan(place: SearchScope, wanted: Mapping[str, Any], standings: Standings, config: Config) -> Plan:
    """Choose a plan, as the laws say. `wanted` are a filter's conditions by field. It may read rows of several indexes."""
    spans = {
        field: span
        for field, condition in wanted.items()
        if field in standings and standings[field].built and (span := span_of(condition)) is not None
    }
    read = 0
    for field, span in spans.items():
        paths = _gathered(place, field, span, config.item_probe_rows_max)
        read += len(paths)
        if len(paths) < config.item_probe_rows_max:
            return _lookup(place, field, read, paths)
    for field, span in spans.items():
        if span.exact is not None:
            return _stream(field, read, span.exact)
    for field, span in spans.items():
        paths = _gathered(place, field, span, config.item_scan_rows_max)
        read += len(paths)
        if len(paths) < config.item_scan_rows_max:
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
