"""Scans over sealed rows, in the order of their plain keys.

Below, the rows of a *group* (keys that share all but a hidden part) are one range, in an order that says nothing. A scan
that meets a group opens its rows, sorts them, and goes on behind it.

Laws:
- A scan holds a bounded number of rows of a group: of a larger one it keeps the next ones, and reads the group again for
  those after them. It holds a bounded number of bytes of values, and reads other values again when they are their turn.
- The order of a group is remembered, within a bound, and follows each write. So pages of a large group cost what they show.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator
from typing import Final

from shoal.crdt.rows import successor
from shoal.records import NamedTuple
from shoal.storage.encrypted.rows import RowCipher, hidden_from, unhidden

_HELD_BYTES_MAX: Final = 1 << 20
_REMEMBERED_MIN: Final = 64  # Rows of a group whose order is worth remembering.
_SLICE: Final = 256  # Rows taken from an order at a time: it may change while a scan waits.

Entry = tuple[bytes, bytes]
"""The hidden part of a row's key, and what stands for it below."""


class Orders:
    """The sorted entries of groups, at most `rows_max` of them; those used last stay."""

    def __init__(self, rows_max: int) -> None:
        self.rows_max = rows_max
        self._entries: OrderedDict[bytes, list[Entry]] = OrderedDict()
        self._rows = 0

    @property
    def is_used(self) -> bool:
        """Whether any group is remembered."""
        return self._rows > 0

    def find(self, group: bytes) -> list[Entry] | None:
        """The entries of a group, in order; None if they are not remembered."""
        found = self._entries.get(group)
        if found is not None:
            self._entries.move_to_end(group)
        return found

    def remember(self, group: bytes, entries: list[Entry]) -> None:
        """Remember all entries of a group."""
        if len(entries) < _REMEMBERED_MIN:
            return
        self._forget(group)
        self._entries[group] = entries
        self._rows += len(entries)
        self._bound()

    def add(self, group: bytes, hidden: bytes, name: bytes) -> None:
        """A row is written."""
        entries = self._entries.get(group)
        if entries is None:
            return
        at = bisect_left(entries, (hidden, name))
        if at == len(entries) or entries[at][0] != hidden:
            insort(entries, (hidden, name))
            self._rows += 1
            self._bound()

    def discard(self, group: bytes, hidden: bytes, name: bytes) -> None:
        """A row is deleted."""
        entries = self._entries.get(group)
        if entries is None:
            return
        at = bisect_left(entries, (hidden, name))
        if at < len(entries) and entries[at][0] == hidden:
            del entries[at]
            self._rows -= 1

    def drop(self, start: bytes, stop: bytes) -> None:
        """Forget the groups that have rows from `start` to `stop`."""
        for group in [group for group in self._entries if group < stop and (successor(group) or stop) > start]:
            self._forget(group)

    def clear(self) -> None:
        """Forget all."""
        self._entries.clear()
        self._rows = 0

    def _forget(self, group: bytes) -> None:
        self._rows -= len(self._entries.pop(group, ()))

    def _bound(self) -> None:
        while self._rows > self.rows_max:
            self._rows -= len(self._entries.popitem(last=False)[1])


class _Span(NamedTuple):
    """The hidden parts that a scan still wants of a group: `low` ≤ hidden < `high`; None: no bound."""

    low: bytes
    high: bytes | None

    def holds(self, hidden: bytes) -> bool:
        return hidden >= self.low and (self.high is None or hidden < self.high)


class _Collected(NamedTuple):
    """Entries of a group in their order: all of them (`whole`), or those that come next."""

    entries: list[Entry]
    values: dict[bytes, bytes]  # Of those that were held, by what stands for them below.
    whole: bool
    following: tuple[bytes, bytes] | None  # The row below after the group.


class Scanning:
    """Scans in one direction. `scan` and `get` read what is below."""

    def __init__(
        self,
        cipher: RowCipher,
        orders: Orders,
        scan: Callable[[bytes, bytes], Iterator[tuple[bytes, bytes]]],
        get: Callable[[bytes], bytes | None],
        *,
        reverse: bool = False,
    ) -> None:
        self._cipher = cipher
        self._orders = orders
        self._below = scan
        self._get = get
        self._reverse = reverse

    def rows(self, start: bytes, stop: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """The plain rows from `start` to `stop`; None: to the end."""
        end = stop or b"\xff" * 16  # Behind every table.
        # Below, a group is read as a whole; what was not asked for is left out here.
        first = start[: hidden_from(start)] if start else start
        last = (successor(end[:clear]) or end) if (clear := hidden_from(end)) < len(end) else end
        while first < last:
            beyond = yield from self._until_reread(first, last, start, end)
            if beyond is None:
                return
            first, last = (first, beyond + b"\0") if self._reverse else (successor(beyond) or last, last)

    def _until_reread(
        self, first: bytes, last: bytes, start: bytes, end: bytes
    ) -> Generator[tuple[bytes, bytes], None, bytes | None]:
        """Scan; returns the group behind which another scan must begin, because rows of it were read again, or None."""
        below = self._below(first, last)
        row = next(below, None)
        while row is not None:
            place, stored = row
            clear = hidden_from(place)
            if clear >= len(place):
                if start <= place < end:
                    yield place, self._cipher.open(place, stored)
                row = next(below, None)
                continue
            group = place[:clear]
            order = self._orders.find(group)
            if order is not None:
                yield from self._ordered(group, order, _span(group, start, end))
                return group
            span = _span(group, start, end)
            found = self._collected(group, row, below, span)
            yield from self._shown(group, found, span)
            if not found.whole:
                yield from self._rest(group, found.entries, span)
                return group
            self._orders.remember(group, found.entries)
            if len(found.values) < len(found.entries):
                return group
            row = found.following
        return None

    def _collected(
        self, group: bytes, row: tuple[bytes, bytes] | None, below: Iterator[tuple[bytes, bytes]], span: _Span
    ) -> _Collected:
        """Read a group from its first row on."""
        clear, most = len(group), self._orders.rows_max
        entries: list[Entry] = []
        values: dict[bytes, bytes] = {}
        held, whole = 0, True
        while row is not None and row[0].startswith(group) and len(row[0]) > clear:
            place, stored = row
            hidden, value = unhidden(self._cipher.open(place, stored))
            entries.append((hidden, place[clear:]))
            if held < _HELD_BYTES_MAX and whole:
                values[place[clear:]] = value
                held += len(value)
            if len(entries) >= 2 * most:
                entries, values, whole = self._next_of(entries, span), {}, False
            row = next(below, None)
        entries.sort()
        return _Collected(entries if whole else self._next_of(entries, span), values, whole, row)

    def _next_of(self, entries: list[Entry], span: _Span) -> list[Entry]:
        """The entries that a scan of this span shows next, at most as many as it may hold; sorted."""
        wanted = sorted(entry for entry in entries if span.holds(entry[0]))
        return wanted[-self._orders.rows_max :] if self._reverse else wanted[: self._orders.rows_max]

    def _shown(self, group: bytes, found: _Collected, span: _Span) -> Iterator[tuple[bytes, bytes]]:
        for hidden, name in reversed(found.entries) if self._reverse else found.entries:
            if span.holds(hidden):
                value = found.values.get(name)
                if value is not None:
                    yield group + hidden, value
                else:
                    yield from self._again(group, hidden, name)

    def _rest(self, group: bytes, shown: list[Entry], span: _Span) -> Iterator[tuple[bytes, bytes]]:
        """The entries that follow these in a group of which not all could be held."""
        behind = successor(group)
        assert behind is not None  # It begins with the table's byte.
        while shown:
            span = span._replace(high=shown[0][0]) if self._reverse else span._replace(low=shown[-1][0] + b"\0")
            below = self._below(group, behind)
            found = self._collected(group, _first_hidden(below, len(group)), below, span)
            shown = found.entries
            yield from self._shown(group, found, span)

    def _ordered(self, group: bytes, order: list[Entry], span: _Span) -> Iterator[tuple[bytes, bytes]]:
        """The rows of a group whose order is remembered. It may change between two slices."""
        while True:
            at = bisect_left(order, (span.low,))
            upto = len(order) if span.high is None else bisect_left(order, (span.high,))
            some = order[max(at, upto - _SLICE) : upto] if self._reverse else order[at : min(upto, at + _SLICE)]
            if not some:
                return
            for hidden, name in reversed(some) if self._reverse else some:
                yield from self._again(group, hidden, name)
            span = span._replace(high=some[0][0]) if self._reverse else span._replace(low=some[-1][0] + b"\0")

    def _again(self, group: bytes, hidden: bytes, name: bytes) -> Iterator[tuple[bytes, bytes]]:
        stored = self._get(group + name)
        if stored is not None:  # Else it was deleted meanwhile.
            yield group + hidden, unhidden(self._cipher.open(group + name, stored))[1]


def _first_hidden(below: Iterator[tuple[bytes, bytes]], clear: int) -> tuple[bytes, bytes] | None:
    return next((row for row in below if len(row[0]) > clear), None)


def _span(group: bytes, start: bytes, end: bytes) -> _Span:
    low = start[len(group) :] if start.startswith(group) else b""
    return _Span(low, end[len(group) :] if end.startswith(group) else None)
