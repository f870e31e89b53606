"""A handle that is composed of parts, each with methods of its own.

    class Thread:
        heads = of_part("_branches", ThreadBranches.heads)

A method is declared once, in its part, with its signature and docstring. The parts do not know the handle: each gets
what it needs when it is made.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast, overload

P = ParamSpec("P")
R = TypeVar("R")


class of_part(Generic[P, R]):  # Named like a function, because it is used like a decorator.
    """The method of a part as a method of the handle. Type checkers see only the first signature of an overloaded method."""

    def __init__(self, part: str, method: Callable[Concatenate[Any, P], R]) -> None:
        self._method = method
        self._bound = attrgetter(f"{part}.{method.__name__}")

    @overload
    def __get__(self, handle: None, owner: type) -> Callable[Concatenate[Any, P], R]: ...
    @overload
    def __get__(self, handle: object, owner: type) -> Callable[P, R]: ...
    def __get__(self, handle: object | None, owner: type) -> Callable[..., R]:
        return self._method if handle is None else cast("Callable[P, R]", self._bound(handle))
