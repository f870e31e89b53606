"""The allowance of one request for work beyond its own size, charged before anything is copied.

Laws:
- A request's cost is bounded by its bytes and these bounds, never by what small operations make of each other: a copy that
  doubles its source is charged for the source each time.
- Measuring a value copies nothing, and ends where the allowance does. A packed value is measured without being unpacked.
- Finding the least difference of two sequences is charged by its steps. Where they end, all between the first and the last
  difference counts as replaced: the result is longer, and still right.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator, Sequence
from difflib import SequenceMatcher
from itertools import accumulate
from typing import Any, Literal

import msgpack  # type: ignore[import-untyped]

from shoal.errors import TooLarge

NODES_MAX = 100_000  # Values, nested ones included, that the operations of one request copy or read: some tens of milliseconds.
BYTES_MAX = 16 * 1024 * 1024  # Of their texts and bytes: as much as one request may hold by itself.
STEPS_MAX = 1 << 18  # Of finding least differences: some tens of milliseconds.

_FEW_BYTES = 256
_NIL = 0xC0
LISTS = frozenset([*range(0x90, 0xA0), 0xDC, 0xDD])  # The first bytes of msgpack's lists and maps,
MAPS = frozenset([*range(0x80, 0x90), 0xDE, 0xDF])
EXTENSIONS = {0xC7: 3, 0xC8: 4, 0xC9: 6, **dict.fromkeys(range(0xD4, 0xD9), 2)}  # and of extensions, by their heads' length.

Opcodes = list[tuple[Literal["replace", "delete", "insert", "equal"], int, int, int, int]]  # As difflib has them.


def length_of_list(head: bytes) -> int | None:
    """The length of a packed list, by its first five bytes; None if it is no list."""
    first = head[0] if head else _NIL
    if first not in LISTS:
        return None
    return first & 0x0F if first < 0xDC else int.from_bytes(head[1 : 3 if first == 0xDC else 5], "big")


class Allowance:
    """The work that is left to one request."""

    def __init__(self, *, nodes: int = NODES_MAX, bytes: int = BYTES_MAX, steps: int = STEPS_MAX) -> None:
        self._nodes = nodes
        self._bytes = bytes
        self._steps = steps

    def charge(self, value: Any) -> None:
        """Charge for a copy of `value`, which is not made here.

        Raises:
            TooLarge: the request's operations copy more than it may.
        """
        waiting = [value]
        while waiting:
            part = waiting.pop()
            self._nodes -= 1
            if isinstance(part, str | bytes | bytearray):
                self._bytes -= len(part)
            elif isinstance(part, dict):
                self._enter(len(part))
                self._bytes -= sum(len(key) for key in part if isinstance(key, str | bytes))
                waiting += part.values()
            elif isinstance(part, list | tuple | set | frozenset):
                self._enter(len(part))
                waiting += part
            elif isinstance(size := getattr(part, "nbytes", None), int):  # An array.
                self._bytes -= size
            elif isinstance(fields := getattr(part, "__dict__", None), dict):  # An object of a registered class.
                waiting.append(fields)
            self._enter(0)

    def charge_packed(self, packed: bytes) -> None:
        """Charge for the values that unpacking `packed` makes; bytes that are no value are charged as far as they are one.

        Raises:
            TooLarge: it makes more than the request may.
        """
        for _ in self.charging_packed(packed, sys.maxsize):
            pass

    def charging_packed(self, packed: bytes, every: int) -> Iterator[None]:
        """As `charge_packed`, about so many values at a time.

        Raises:
            TooLarge: it makes more than the request may.
        """
        waiting, few = [packed], 0
        while waiting:
            part = waiting.pop()
            if len(part) <= _FEW_BYTES:  # They cannot hold more values.
                self._nodes -= len(part)
                self._enter(0)
                few += 1
                if few % every == 0:
                    yield
                continue
            walker = msgpack.Unpacker(max_buffer_size=len(part))
            walker.feed(part)
            try:
                yield from self._walk(part, walker, waiting, every)
            except (ValueError, msgpack.UnpackException):
                continue

    def _walk(self, packed: bytes, walker: msgpack.Unpacker, extensions: list[bytes], every: int) -> Iterator[None]:
        left, due = 1, every
        while left:
            due -= 1
            if not due:
                yield
                due = every
            begin, left = walker.tell(), left - 1
            self._nodes -= 1
            first = packed[begin] if begin < len(packed) else _NIL
            if first in LISTS or first in MAPS:
                inside = walker.read_array_header() if first in LISTS else 2 * walker.read_map_header()
                self._enter(inside)
                left += inside
            else:
                walker.skip()
                if first in EXTENSIONS:
                    extensions.append(packed[begin + EXTENSIONS[first] : walker.tell()])
        self._enter(0)

    def _enter(self, inside: int) -> None:
        if self._nodes < inside or self._bytes < 0:
            raise TooLarge(
                f"its operations copy or read more than {NODES_MAX} values or {BYTES_MAX} bytes. Nothing was written. "
                "Send it in parts, or send the content that you want."
            )

    def opcodes(self, old: Sequence[Any], new: Sequence[Any]) -> Opcodes:
        """How `old` becomes `new`, as by `difflib`, by the least change that can be found with the steps that are left."""
        try:
            return list(_Charged(old, new, self).get_opcodes())
        except _Spent:
            return [("replace", 0, len(old), 0, len(new))]

    def step(self, count: int) -> None:
        """Take so many steps of finding a difference. Only `opcodes` does, whose end of steps is no error."""
        self._steps -= count
        if self._steps < 0:
            raise _Spent


def has_at_most(packed: bytes, values_max: int) -> bool:
    """Whether packed bytes hold at most so many values, as far as they are any. No more are looked at."""
    try:
        Allowance(nodes=values_max, bytes=len(packed)).charge_packed(packed)
    except TooLarge:
        return False
    return True


def counting(packed: bytes, values_max: int, every: int) -> Generator[None, None, bool]:
    """As `has_at_most`, about so many values at a time."""
    try:
        yield from Allowance(nodes=values_max, bytes=len(packed)).charging_packed(packed, every)
    except TooLarge:
        return False
    return True


class _Spent(Exception):
    """No steps are left."""


class _Charged(SequenceMatcher[Any]):
    """A matcher that charges each search for the pairs of equal items that it looks at: there may be as many as the product of
    both lengths, and as many searches as items.
    """

    def __init__(self, old: Sequence[Any], new: Sequence[Any], allowance: Allowance) -> None:
        allowance.step(0)
        super().__init__(None, old, new, autojunk=False)
        self._allowance = allowance
        places: dict[Any, list[int]] = self.b2j  # type: ignore[attr-defined]
        self._pairs = [0, *accumulate(1 + len(places.get(item, ())) for item in old)]

    def find_longest_match(self, alo: int = 0, ahi: int | None = None, blo: int = 0, bhi: int | None = None) -> Any:
        self._allowance.step(self._pairs[-1 if ahi is None else ahi] - self._pairs[alo])
        return super().find_longest_match(alo, ahi, blo, bhi)
