"""What each add adds, so that a counter's value says which adds it holds.

Laws:
- The nth add to a counter adds the nth power of four. So each add is a digit of the value, in base four: 0 if it is
  missing, 1 if it counts, 2 or 3 if it counted that often. No add can hide behind another one of unknown outcome.
- A counter takes `ADDS_MAX` of them, so that the value fits in 64 bits on the wire. Then another counter begins, with
  a name of the same tag: it is in the same partition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

ADDS_MAX = 30
"""To one counter. Four to the power of this is below 2**63, if all adds count once."""

_BITS = 2  # Of one add.


class Amounts:
    """Gives each add a counter and an amount, by the name that its writer has for the counter."""

    def __init__(self) -> None:
        self._begun: Counter[str] = Counter()

    def next(self, name: str) -> tuple[str, int]:
        """The counter that takes the next add, and the amount."""
        counter, nth = self.counter(name), self._begun[name] % ADDS_MAX
        self._begun[name] += 1
        return counter, nth_amount(nth)

    def counter(self, name: str) -> str:
        """The counter that takes the next add."""
        full = self._begun[name] // ADDS_MAX
        return f"{{{name}}}/adds-{full}" if full else name


def nth_amount(nth: int) -> int:
    """From 0."""
    return 1 << nth * _BITS


def is_nth_amount(amount: int) -> bool:
    """Whether `amount` is one of those."""
    return amount > 0 and amount.bit_count() == 1 and (amount.bit_length() - 1) % _BITS == 0


def counted(value: int) -> Iterator[tuple[int, int]]:
    """The amounts that a counter's value holds, from 0 on, and how often each. A value below 0 holds -1 of them, once."""
    if value < 0:
        yield -1, 1
    nth = 0
    while value > 0:
        value, times = value >> _BITS, value & (1 << _BITS) - 1
        if times:
            yield nth_amount(nth), times
        nth += 1
