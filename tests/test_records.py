"""Named tuples that cost less to declare: they are what `typing.NamedTuple` would make."""

from __future__ import annotations

import pickle
import typing
from typing import Any, Generic, TypeVar, get_type_hints

import msgspec
import pytest

from shoal import records

_T = TypeVar("_T")


class Ours(records.NamedTuple):
    """Some fields."""

    name: str
    size: int | None = 3

    @property
    def twice(self) -> int:
        """A property."""
        return 2 * (self.size or 0)


class Theirs(typing.NamedTuple):
    """Some fields."""

    name: str
    size: int | None = 3

    @property
    def twice(self) -> int:
        """A property."""
        return 2 * (self.size or 0)


class Held(records.NamedTuple, Generic[_T]):
    """Of any type."""

    value: _T


def test_it_has_what_typing_gives_one() -> None:
    ours, theirs = vars(Ours), vars(Theirs)
    assert ours.keys() - {"__orig_bases__"} == theirs.keys() - {"__orig_bases__"}
    assert [type(ours[name]) for name in sorted(ours.keys() & theirs.keys())] == [
        type(theirs[name]) for name in sorted(ours.keys() & theirs.keys())
    ]
    assert (Ours._fields, Ours._field_defaults, Ours.__doc__, Ours.__mro__[1:]) == (
        Theirs._fields,
        Theirs._field_defaults,
        Theirs.__doc__,
        Theirs.__mro__[1:],
    )


def test_it_is_a_tuple_with_names_and_methods() -> None:
    made = Ours("a")
    assert (made, made.size, made.twice, repr(made)) == (("a", 3), 3, 6, "Ours(name='a', size=3)")
    assert made._replace(size=None) == Ours("a", None)
    assert pickle.loads(pickle.dumps(made)) == made


def test_its_types_can_still_be_asked_for() -> None:
    assert get_type_hints(Ours) == get_type_hints(Theirs) == {"name": str, "size": int | None}
    assert msgspec.convert(["a", None], Ours) == Ours("a", None)


def test_it_may_be_generic() -> None:
    alias: Any = Held[int]
    assert alias(5) == (5,)
    assert isinstance(Held(5), Held)


def test_a_field_without_a_default_comes_first() -> None:
    wrong = "class Wrong(NamedTuple):\n    first: int = 1\n    second: int\n"
    with pytest.raises(TypeError, match="Non-default"):
        exec(wrong, {"NamedTuple": records.NamedTuple, "__name__": ""})
