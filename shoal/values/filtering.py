"""Filters, which select what a search or a listing shows: items by their values, threads and checkpoints by their metadata.

Laws:
- There is one language, wherever a filter is given.
- A filter is a map of fields; all of them must match. A field is the one with this
  name, or else the one at a path of names joined by dots. A missing field counts as None.
- The condition of a field is a value, which must be equal; a map of fields, which must
  match; a list, whose elements must match one by one; or a map of operators, which must
  all be true: `$eq $ne $gt $gte $lt $lte`. Values without an order are neither more nor less.
- A name that begins with `$` is an operator, never data: one that is unknown, or stands where a field belongs, is refused.
- Only the fields that a filter names are decoded. A field that holds a class that this
  process does not know equals nothing, and neither does one of more values than a filter may hold (`shoal.values.work`); names
  and lengths are compared before a value is decoded. A value is split into its fields once for all conditions.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from shoal import values
from shoal.errors import InvalidInput, ShoalError, TooLarge
from shoal.values.work import NODES_MAX, Allowance, length_of_list

_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "$eq": operator.eq,
    "$ne": operator.ne,
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}
_SPLIT_BYTES_MAX = 64 * 1024  # Of a larger map only the fields that are named are looked for.
_fields = msgspec.msgpack.Decoder(dict[Any, msgspec.Raw]).decode
_elements = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode


class _Packed(bytes):
    """A condition that cannot be decoded here."""


class _Unreadable:
    """A value that cannot be decoded here: equal to nothing, and without an order."""


_UNREADABLE = _Unreadable()


class Filter:
    """A checked filter. `wanted` are its conditions by field."""

    def __init__(self, packed: bytes, *, terms_max: int) -> None:
        """Check a packed filter; empty matches everything.

        Raises:
            InvalidValue, InvalidInput: it is not a filter.
            TooLarge: it has more than `terms_max` fields, operators and elements of lists, or more values than a request may.
        """
        _charge(Allowance(), packed)
        wanted = values.decode(packed) if packed else {}
        if not isinstance(wanted, dict):
            raise InvalidInput(f"a filter must be a map of fields; this one is a {type(wanted).__name__}. Nothing was read.")
        self.wanted: Mapping[str, Any] = _checked(wanted, terms_max)

    @classmethod
    def of_fields(cls, packed: Mapping[str, bytes], *, terms_max: int) -> Filter:
        """A filter of which each condition is packed by itself. Raises as the constructor does.

        A condition that holds a class that this process does not know is met by equal bytes.
        """
        made, allowance = cls(b"", terms_max=terms_max), Allowance()
        for condition in packed.values():
            _charge(allowance, condition)
        made.wanted = _checked({name: _condition(condition) for name, condition in packed.items()}, terms_max)
        return made

    def matches(self, packed: bytes) -> bool:
        """Whether a packed value fulfils all conditions."""
        split: _Split = {}
        return all(_met(_field_of(packed, name, split, self.wanted), wanted) for name, wanted in self.wanted.items())


def packed_fields(filter: Mapping[str, Any] | None) -> dict[str, bytes]:
    """The conditions of a filter, each packed by itself, for `Filter.of_fields`; None has none.

    Raises:
        InvalidInput: it is not a mapping of texts.
        InvalidValue: a condition cannot be packed.
    """
    if filter is None:
        return {}
    if not isinstance(filter, Mapping):
        raise InvalidInput(f"filter must be a mapping of fields to conditions, not {type(filter).__name__}. Nothing was read.")
    return {name: values.encode(condition, where=f"filter[{name!r}]") for name, condition in filter.items()}


def meets(fields: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether decoded fields, by name, meet all conditions, which `check` has checked."""
    return all(_holds(_found(fields, name), condition) for name, condition in wanted.items())


def check(wanted: Mapping[str, Any], *, terms_max: int) -> None:
    """Check conditions by field.

    Raises:
        InvalidInput, TooLarge: as for `Filter`.
    """
    _checked(dict(wanted), terms_max)


def field_of(packed: bytes, name: str) -> bytes | None:
    """The packed field of a packed value, by name or by path; None if it has none."""
    found = _field_of(packed, name, {}, (name,))
    return None if found is None else bytes(found)


_Part = bytes | msgspec.Raw
_Split = dict[tuple[str, ...], dict[str, msgspec.Raw]]
"""The fields of a value, and of maps in it, by their paths."""


def _field_of(packed: bytes, name: str, split: _Split, wanted: Iterable[str]) -> _Part | None:
    parts = _split(packed, (), split, wanted)
    if name in parts or "." not in name:
        return parts.get(name)
    path: tuple[str, ...] = ()
    found: _Part = packed
    for step in name.split("."):
        inner = _split(found, path, split, wanted).get(step)
        if inner is None:
            return None
        found, path = inner, (*path, step)
    return found


def _split(packed: _Part, path: tuple[str, ...], split: _Split, wanted: Iterable[str]) -> dict[str, msgspec.Raw]:
    if path not in split:
        is_large = len(memoryview(packed)) > _SPLIT_BYTES_MAX
        split[path] = _named(packed, frozenset(wanted)) if is_large else _parts(packed)
    return split[path]


def _named(packed: _Part, wanted: frozenset[str]) -> dict[str, msgspec.Raw]:
    """Those fields that conditions name. The others are skipped: to make half a million keys takes 0.3 s."""
    try:
        picked = _picker(wanted).decode(packed)
    except (ValueError, TypeError, RecursionError):
        return _parts(packed)  # A name is no text.
    names = picked.__struct_encode_fields__
    found = zip(names, msgspec.structs.astuple(picked), strict=True)
    return {name: value for name, value in found if value is not msgspec.UNSET}


@lru_cache(maxsize=64)
def _picker(wanted: frozenset[str]) -> msgspec.msgpack.Decoder[Any]:
    names = sorted({step for name in wanted for step in (name, *name.split("."))})
    fields = [(f"f{nth}", msgspec.Raw | msgspec.UnsetType, msgspec.UNSET) for nth in range(len(names))]
    renamed = {f"f{nth}": name for nth, name in enumerate(names)}
    return msgspec.msgpack.Decoder(msgspec.defstruct("_Picked", fields, rename=renamed))


def _found(fields: Mapping[str, Any], name: str) -> Any:
    """As `field_of`, of decoded fields."""
    if name in fields or "." not in name:
        return fields.get(name)
    found: Any = fields
    for step in name.split("."):
        found = found.get(step) if isinstance(found, Mapping) else None
    return found


def _checked(wanted: dict[Any, Any], terms_max: int) -> dict[str, Any]:
    _check_terms(wanted, terms_max)
    if _is_operators(wanted):
        name = min((name for name in wanted if str(name).startswith("$")), key=str)
        raise InvalidInput(
            f'a filter must begin with fields, not with the operator {name!r}, as in {{"score": {{"$gte": 3}}}}. '
            f"The operators are {', '.join(_OPERATORS)}. Nothing was read."
        )
    _check_operators(wanted)
    return wanted


def _charge(allowance: Allowance, packed: bytes) -> None:
    try:
        allowance.charge_packed(packed)
    except TooLarge:
        raise TooLarge(f"a filter may hold at most {NODES_MAX} values; it has more. Nothing was read.") from None


def _parts(packed: _Part) -> dict[str, msgspec.Raw]:
    try:
        return _fields(packed)
    except (ValueError, TypeError, RecursionError):  # It is not a map, or its names cannot be keys of a dict.
        return {}


def _decoded(packed: _Part | None) -> Any:
    if packed is None:
        return None
    whole = bytes(packed)
    try:
        Allowance().charge_packed(whole)
        return values.decode(whole)
    except ShoalError:
        return _UNREADABLE


def _condition(packed: bytes) -> Any:
    try:
        return values.decode(packed)
    except ShoalError:
        return _Packed(packed)


def _met(packed: _Part | None, wanted: Any) -> bool:
    if type(wanted) is _Packed:
        return packed is not None and bytes(packed) == wanted
    if packed is not None and isinstance(wanted, dict) and not _is_operators(wanted):
        try:
            parts = _fields(packed)
        except (ValueError, TypeError, RecursionError):
            return _holds(_decoded(packed), wanted)  # A class of map, or no map.
        return all(_met(parts.get(name), part) for name, part in wanted.items())
    if packed is not None and isinstance(wanted, list | tuple):
        length = length_of_list(bytes(memoryview(packed)[:5]))
        if length is not None:
            return length == len(wanted) and all(map(_met, _elements(packed), wanted))
    return _holds(_decoded(packed), wanted)


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
            raise TooLarge(
                f"a filter may have at most {terms_max} fields, operators and list elements; it has more. Nothing was read."
            )


def _check_operators(wanted: Any) -> None:
    if isinstance(wanted, list | tuple):
        for part in wanted:
            _check_operators(part)
    if not isinstance(wanted, dict):
        return
    if _is_operators(wanted):
        for name in wanted:
            if name not in _OPERATORS:
                raise InvalidInput(
                    f"{name!r} is not a filter operator; the operators are {', '.join(_OPERATORS)}. Nothing was read."
                )
        return
    for name, part in wanted.items():
        if not isinstance(name, str):
            raise InvalidInput(f"a field of a filter must be a string; got {name!r}. Nothing was read.")
        _check_operators(part)
