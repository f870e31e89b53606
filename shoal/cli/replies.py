"""Replies of the protocol for machines, as HTTP has them, and for people, as cells of tables.

Laws:
- A document has the fields of the reply and its properties, by their names over HTTP; packed values are JSON, cursors are text.
- In a cell a packed value is JSON and other text is as it is, so that `1` and `"1"` differ.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from shoal import values
from shoal.api.http.headers import shown_opaque
from shoal.cli.output import ago, moment, plain, to_text
from shoal.protocol.declared import Named, Shape
from shoal.records import NamedTuple
from shoal.values import forms as vectors


class Field(NamedTuple):
    """A field or a property of a reply, or of a part of one."""

    name: str  # In the protocol.
    shown: str  # Over HTTP.
    kind: Any


class Column(NamedTuple):
    """A column of a table: the way to it, of fields of the row, and its heading."""

    path: tuple[str, ...]
    heading: str


def document(reply: Struct) -> dict[str, Any]:
    """A reply, or a part of one, for machines."""
    return {field.shown: shown(getattr(reply, field.name), field.kind) for field in fields(type(reply))}


@cache  # As many as there are replies, and parts of them.
def fields(kind: Any) -> tuple[Field, ...]:
    """The fields of a reply that callers see, and its properties."""
    found = []
    for field in msgspec.structs.fields(kind):
        marks = marks_of(field.type)
        if Shape.INTERNAL not in marks:
            name = next((mark.name for mark in marks if isinstance(mark, Named)), field.name)
            found.append(Field(field.name, name, field.type))
    computed = ((name, each.fget) for name, each in vars(kind).items() if isinstance(each, property))
    return (*found, *(Field(name, name, get_type_hints(get, include_extras=True)["return"]) for name, get in computed))


def marks_of(kind: Any) -> tuple[Any, ...]:
    """The marks of a type, also of one that may be None."""
    return get_args(kind)[1:] if get_origin(kind) is Annotated else ()


def bare(kind: Any) -> Any:
    """A type without its marks."""
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def present(kind: Any) -> Any:
    """A type without None."""
    if get_origin(kind) in (Union, UnionType) and NoneType in get_args(kind):
        [found] = (each for each in get_args(kind) if each is not NoneType)
        return found
    return kind


def shown(value: Any, kind: Any) -> Any:
    """A field's value for machines."""
    if value is None:
        return None
    for mark in marks_of(kind):
        if mark in _SHOWN:
            return _SHOWN[mark](value)
    kind = present(bare(kind))
    if marks_of(kind):
        return shown(value, kind)
    if isinstance(value, Struct):
        return document(value)
    if isinstance(value, list | tuple) and get_args(kind):
        return [shown(each, get_args(kind)[0]) for each in value]
    if isinstance(value, dict):
        return {name: shown(each, get_args(kind)[1]) for name, each in value.items()}
    return value


_SHOWN: dict[Any, Callable[[Any], Any]] = {
    Shape.VALUE: lambda kept: values.decode(kept) if kept else None,
    Shape.VALUES: lambda kept: values.decode(kept) if kept else None,
    Shape.STATE: lambda kept: {name: values.decode(each) for name, each in kept.items()},
    Shape.CURSOR: shown_opaque,
    Shape.JSON: lambda kept: json.loads(kept),
    Shape.SECONDS: lambda kept: kept / 1000,
    Shape.MOMENT: lambda kept: kept or None,
    Shape.TIME: lambda kept: datetime.fromtimestamp(kept / 1000, UTC).isoformat(),
    Shape.VECTOR: lambda kept: list(vectors.unpack(kept)),
}


_NIL = values.encode(None)

# ── for people ────────────────────────────────────────────────────────────────


def columns_of(kind: Any, chosen: Sequence[str], name: str) -> list[Column]:
    """The columns of rows of this type; of those that are no structs, one of this name."""
    if not (isinstance(kind, type) and issubclass(kind, Struct)):
        return [Column((), name)]
    paths = chosen or [field.name for field in fields(kind) if Shape.CURSOR not in marks_of(field.kind)]
    return [Column(tuple(path.split(".")), _heading(path)) for path in paths]


def cell(row: Any, kind: Any, path: Sequence[str], *, told: Callable[[int], str]) -> str:
    """The text of a row in a column; `told` shows a time."""
    return ", ".join(_texts(row, kind, path, told))


def age(wall_ms: int) -> str:
    """A time in a table on a terminal."""
    return ago(datetime.fromtimestamp(wall_ms / 1000, UTC))


def date(wall_ms: int) -> str:
    """A time in a line of a pipe."""
    return moment(wall_ms)


def _heading(path: str) -> str:
    return "age" if path == "wall_ms" else path.removesuffix("_ms").removesuffix(".id").replace(".", " ").replace("_", " ")


def _texts(value: Any, kind: Any, path: Sequence[str], told: Callable[[int], str]) -> Iterator[str]:
    """The texts that a cell has, with commas between them."""
    if value is None or value in (b"", [], {}):
        return
    if Shape.VALUE in marks_of(kind):
        yield to_text(shown(value, kind))
    elif isinstance(value, list):
        within = get_args(present(bare(kind)))[0]
        for each in value:
            yield from _texts(each, within, path, told)
    elif path and isinstance(value, Struct):
        [field] = (each for each in fields(type(value)) if each.name == path[0])
        found = getattr(value, field.name)
        if len(path) == 1 and (path[0].endswith("_ms") or Shape.TIME in marks_of(field.kind)):
            yield from [told(found)] if found else []
        elif found == _NIL:
            return
        elif isinstance(found, bool):
            yield from [field.shown] if found else []
        else:
            yield from _texts(found, field.kind, path[1:], told)
    elif isinstance(value, str):
        yield plain(value)
    else:
        yield to_text(shown(value, kind))
