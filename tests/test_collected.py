"""Structs that the garbage collector does not see (`gc=False`) refer to nothing that could refer back to them.

One that refers to a transaction, or to rows, is kept for ever as soon as a callback of that refers to it.
"""

from __future__ import annotations

import collections.abc
import importlib
import pkgutil
import types
import typing
from collections.abc import Iterator
from enum import Enum
from typing import Any

import msgspec
import pytest

import shoal
from shoal.crdt.dot import VersionVector
from shoal.node.transaction import Transaction
from shoal.protocol.requests import Saved

_LEAVES = (int, str, bytes, bool, float, memoryview, type(None), Enum, msgspec.Raw, VersionVector)
_COLLECTIONS = (
    *(typing.Union, types.UnionType, tuple, list, dict, set, frozenset),
    *(collections.abc.Sequence, collections.abc.Mapping, collections.abc.Set),
)


def unseen() -> list[type[msgspec.Struct]]:
    for module in pkgutil.walk_packages(shoal.__path__, "shoal."):
        if not module.name.startswith(("shoal.integrations", "shoal.cli", "shoal.demo")):
            importlib.import_module(module.name)
    return sorted((each for each in _below(msgspec.Struct) if not each.__struct_config__.gc), key=str)


def _below(kind: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    for each in kind.__subclasses__():
        if each.__module__.startswith("shoal."):
            yield each
        yield from _below(each)


def grows(hint: Any, seen: tuple[Any, ...] = ()) -> Iterator[Any]:
    """The types among the parts of a type that may refer to anything."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, typing.NewType):
        yield from grows(hint.__supertype__, seen)
    elif origin is typing.Annotated:
        yield from grows(arguments[0], seen)
    elif origin in _COLLECTIONS:
        for each in arguments:
            yield from () if each is Ellipsis else grows(each, seen)
    elif origin is typing.Literal or hint in seen or (isinstance(hint, type) and issubclass(hint, _LEAVES)):
        return
    elif isinstance(hint, type) and (issubclass(hint, msgspec.Struct) or hasattr(hint, "_fields")):
        for each in fields(hint).values():
            yield from grows(each, (*seen, hint))
    else:
        yield hint


def fields(kind: type) -> dict[str, Any]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return {name: hint for name, hint in hints.items() if typing.get_origin(hint) is not typing.ClassVar}


def test_structs_that_are_not_collected_refer_to_plain_values_alone() -> None:
    found = unseen()
    assert len(found) > 20
    wrong = {
        f"{each.__module__}.{each.__name__}.{name}": list(grows(hint)) for each in found for name, hint in fields(each).items()
    }
    assert {name: kinds for name, kinds in wrong.items() if kinds} == {}


@pytest.mark.parametrize("hint", [Transaction, list[Any], dict[str, Transaction | None], typing.Callable[[], None]])
def test_a_type_that_may_refer_to_anything_is_found(hint: Any) -> None:
    assert list(grows(hint))


def test_a_reply_of_plain_values_is_plain() -> None:
    assert list(grows(Saved)) == []
