"""Numbers in formats and in objects that a text embeds: the engine keeps them as JSON, which it reads not quite exactly.

Each time when a document is encoded and read again, about one of six numbers with a fraction moves by an ulp or two: to one
that stays, mostly at once, or back and forth. So only replicas that were opened equally often would have equal numbers.

Law: a number, and what the engine makes of it however often it is read, have the same settled number.
"""

from __future__ import annotations

from math import inf, isfinite
from typing import Any

_READ_MAX = 4096  # Times. The longest way that was found has 93.
_WRITTEN_WHOLE = 2.0**63  # Whole numbers below it are written without a point, zero without its sign, and read as they are.
_POWERS = [float(f"1e{power}") for power in range(309)]


def settled(value: Any) -> Any:
    """A plain value with its floats settled. Its depth is bounded by `shoal.kinds.document.state.yjs.parse`."""
    if isinstance(value, float):
        return _settled(value)
    if isinstance(value, dict):
        return {key: settled(item) for key, item in value.items()}
    if isinstance(value, list):
        return [settled(item) for item in value]
    return value


def _settled(number: float) -> float | int:
    """The number that it becomes, or the least of those among which it moves; an int if it is written as one."""
    known: dict[float, None] = {}
    while number not in known and len(known) < _READ_MAX:
        known[number] = None
        number = read(number)
    moved = list(known)
    found = min(moved[moved.index(number) :]) if number in known else number
    return int(found) if _is_whole(found) else found


def read(number: float) -> float:
    """A number as the engine reads it from the JSON that it has written (serde_json without `float_roundtrip`)."""
    if not isfinite(number):
        return number
    if _is_whole(number):
        return number + 0.0
    digits, _, exponent = repr(abs(number)).partition("e")
    whole, _, fraction = digits.partition(".")
    found, power = float(int(whole + fraction)), int(exponent or 0) - len(fraction)
    while power < -308:
        found, power = found / 1e308, power + 308
    found = found * _POWERS[power] if power >= 0 else found / _POWERS[-power]
    if found == inf:  # The engine refuses it.
        return number
    return -found if number < 0 else found


def _is_whole(number: float) -> bool:
    return number.is_integer() and abs(number) < _WRITTEN_WHOLE
