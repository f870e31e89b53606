"""A request of each kind, made from the types of its fields."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import NODEFAULT, Struct

from shoal.access.grants import action_of, family_of
from shoal.protocol import requests
from shoal.protocol.requests import Request
from shoal.protocol.requests.families import operations

PACKED = msgspec.msgpack.encode(1)
SPECIAL: dict[type[Any], Any] = {
    requests.Batch: lambda space: requests.Batch([requests.Add(space, "n", 1)]),
    requests.MultiRead: lambda space: requests.MultiRead([requests.ReadCounter(space, "n")]),
    requests.Fenced: lambda space: requests.Fenced([], requests.Add(space, "n", 1)),
    requests.Import: lambda space: requests.Import([requests.Imported(requests.Add(space, "n", 1))]),
    requests.RenewLeases: lambda space: requests.RenewLeases([requests.Term(space, "l", False, 1, "none")]),
    requests.Watch: lambda space: requests.Watch(space),
    requests.PutFile: lambda space: requests.PutFile(space, "t", "n", sha256(b"").hexdigest(), 0, "a/b", b""),
    requests.NameFile: lambda space: requests.NameFile(space, "t", "n", sha256(b"").hexdigest(), 0, "a/b", b""),
}
NEEDS: dict[type[Any], tuple[str, str]] = {
    requests.Batch: ("counter", "append"),
    requests.MultiRead: ("counter", "read"),
    requests.Fenced: ("counter", "append"),
    requests.Import: ("counter", "admin"),
    requests.RenewLeases: ("lease", "write"),
    requests.Watch: ("*", "read"),
    requests.ListObjects: ("thread", "read"),
    requests.ListSpaces: ("*", "read"),
    requests.ListWork: ("*", "read"),
}
"""The family and action of requests that take them from their fields."""


def kinds() -> list[type[Request[Any]]]:
    return [*operations(), *(kind for kind in SPECIAL if kind not in operations())]


def need_of(kind: type[Request[Any]]) -> tuple[str, str]:
    return NEEDS.get(kind) or (family_of(kind), action_of(kind))


def made(kind: type[Request[Any]], space: str) -> Request[Any]:
    """A request about this space."""
    if kind in SPECIAL:
        found: Request[Any] = SPECIAL[kind](space)
        return found
    hints = get_type_hints(kind, include_extras=False)
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        if field.name == "space":
            values["space"] = space
        elif field.default is NODEFAULT and field.default_factory is NODEFAULT:
            values[field.name] = _value(hints[field.name])
    return kind(**values)


def _value(kind: Any) -> Any:
    origin = get_origin(kind)
    if origin is Literal:
        return get_args(kind)[0]
    if origin in (Union, UnionType):
        return None if NoneType in get_args(kind) else _value(get_args(kind)[0])
    if origin is tuple:
        return tuple(map(_value, get_args(kind)))
    if origin is list:
        return [_value(get_args(kind)[0])]
    if origin is dict:
        return {}
    if isinstance(kind, type) and issubclass(kind, Struct):
        hints = get_type_hints(kind)
        return kind(**{field.name: _value(hints[field.name]) for field in msgspec.structs.fields(kind) if field.required})
    return {str: "n", int: 1, float: 1.0, bool: False, bytes: PACKED}[kind]


def names(found: list[type[Request[Any]]]) -> Iterator[str]:
    return (str(kind.__struct_config__.tag) for kind in found)
