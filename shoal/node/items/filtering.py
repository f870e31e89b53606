"""Filters, which select the packed values that a search shows.

Laws:
- A filter is a map of fields; all of them must match. A field is the one with this
  name, or else the one at a path of names joined by dots. A missing field counts as None.
- The condition of a field is a value, which must be equal; a map of fields, which must
  match; a list, whose elements must match one by one; or a map of operators, which must
  all be true: `$eq $ne $gt $gte $lt $lte`. Values without an order are neither more nor less.
- Only the fields that a filter names are decoded. A field that holds a class that this
  process does not know equals nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from shoal import values
from shoal.errors import InvalidInput, ShoalError, TooLarge

_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "$eq": operator.eq,
    "$ne": operator.ne,
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}
_fields = msgspec.msgpack.Decoder(dict[Any, msgspec.Raw]).decode


class _Unreadable:
    """A value that cannot be decoded here: equal to nothing, and without an order."""


_UNREADABLE = _Unreadable()


class Filter:
    """A checked filter. `wanted` are its conditions by field."""

    def __init__(self, packed: bytes, *, terms_max: int) -> None:
        """Check a packed filter; empty matches everything.

        Raises:
            InvalidValue, InvalidInput: it is not a filter.
            TooLarge: it has more than `terms_max` fields, operators and elements of lists.
        """
        wanted = values.decode(packed) if packed else {}
        if not isinstance(wanted, dict):
            raise InvalidInput(f"a filter must be a map of fields; this one is a {type(wanted).__name__}.")
        _check_terms(wanted, terms_max)
        if _is_operators(wanted):
            raise InvalidInput(f"a filter must begin with fields, not with the operator {min(wanted, key=str)!r}.")
        _check_operators(wanted)
        self.wanted: Mapping[str, Any] = wanted

    def matches(self, packed: bytes) -> bool:
        """Whether a packed value fulfils all conditions."""
        return all(_holds(_decoded(field_of(packed, name)), wanted) for name, wanted in self.wanted.items())


def field_of(packed: bytes, name: str) -> bytes | None:
    """The packed field of a packed value, by name or by path; None if it has none."""
    parts = _parts(packed)
    if name in parts or "." not in name:
        return bytes(parts[name]) if name in parts else None
    for step in name.split("."):
        if (found := _parts(packed).get(step)) is None:
            return None
        packed = bytes(found)
    return packed


def _parts(packed: bytes) -> dict[str, Any]:
    try:
        return _fields(packed)
    except (ValueError, TypeError, RecursionError):  # It is not a map, or its names cannot be keys of a dict.
        return {}


def _decoded(packed: bytes | None) -> Any:
    if packed is None:
        return None
    try:
        return values.decode(packed)
    except ShoalError:
        return _UNREADABLE


def _holds(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, dict):
        if _is_operators(wanted):
            return all(_compares(found, _OPERATORS[name], operand) for name, operand in wanted.items())
        return isinstance(found, dict) and all(_holds(found.get(name), part) for name, part in wanted.items())
    if isinstance(wanted, list | tuple):
        return isinstance(found, list | tuple) and len(found) == len(wanted) and all(map(_holds, found, wanted))
    return _compares(found, operator.eq, wanted)


def _compares(found: Any, by: Callable[[Any, Any], Any], wanted: Any) -> bool:
    try:
        return bool(by(found, wanted))
    except Exception:  # Registered classes and arrays may raise anything.
        return by is operator.ne


def _is_operators(wanted: dict[Any, Any]) -> bool:
    return any(isinstance(name, str) and name.startswith("$") for name in wanted)


def _check_terms(wanted: Any, terms_max: int) -> None:
    waiting, terms = [wanted], 0
    while waiting:
        part = waiting.pop()
        inside = part.values() if isinstance(part, dict) else part if isinstance(part, list | tuple) else ()
        waiting.extend(inside)
        terms += len(inside)
        if terms > terms_max:
            raise TooLarge(f"a filter may have at most {terms_max} fields, operators and list elements; this one has more.")


def _check_operators(wanted: Any) -> None:
    if isinstance(wanted, list | tuple):
        for part in wanted:
            _check_operators(part)
    if not isinstance(wanted, dict):
        return
    if _is_operators(wanted):
        for name in wanted:
            if name not in _OPERATORS:
                raise InvalidInput(f"{name!r} is not a filter operator; the operators are {', '.join(_OPERATORS)}.")
        return
    for name, part in wanted.items():
        if not isinstance(name, str):
            raise InvalidInput(f"a field of a filter must be a string; got {name!r}.")
        _check_operators(part)
