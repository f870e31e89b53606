"""The differences of two sequences, so that an edit changes as little as possible.

Finding the least change takes time that grows with the square of the part that differs, and with its cube if items repeat.
Beyond a bound, and where the allowance of the request ends, everything between the first and the last difference is replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shoal.values.work import Allowance

# The greatest product of the lengths of two pieces whose least difference is sought: some tens of milliseconds.
MATCHED_MAX = 1 << 20


def differences(held: Sequence[Any], wanted: Sequence[Any], allowance: Allowance) -> list[tuple[int, int, int, int]]:
    """Where two sequences differ: (start, stop, first, last), in order: `held[start:stop]` becomes `wanted[first:last]`."""
    before, after = common(held, wanted)
    old, new = held[before : len(held) - after], wanted[before : len(wanted) - after]
    if not old and not new:
        return []
    if len(old) * len(new) > MATCHED_MAX:
        return [(before, before + len(old), before, before + len(new))]
    return [
        (before + start, before + stop, before + first, before + last)
        for tag, start, stop, first, last in allowance.opcodes(old, new)
        if tag != "equal"
    ]


def common(held: Sequence[Any], wanted: Sequence[Any]) -> tuple[int, int]:
    """How many items two sequences share at their beginning, and how many of the rest at their end."""
    most = min(len(held), len(wanted))
    before = next((i for i in range(most) if held[i] != wanted[i]), most)
    most -= before
    after = next((i for i in range(most) if held[-1 - i] != wanted[-1 - i]), most)
    return before, after


def equal(one: Any, other: Any) -> bool:
    """Equality of JSON: numbers by value; true is not 1."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def same_id(held: Any, wanted: Any) -> bool:
    """Whether two objects may be the same one: their ids are equal, or one has none."""
    return held is None or wanted is None or equal(held, wanted)
