"""A handle that is made of parts, each with methods of its own.

    class Thread:
        heads = of_part("_branches", ThreadBranches.heads)

A method is declared once, in its part, with its signature and docstring. The parts do not know the handle: each is
made with what it needs.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast, overload

P = ParamSpec("P")
R = TypeVar("R")


class of_part(Generic[P, R]):  # It reads as a decorator does.
    """A method of a handle: that of its `part`. Of an overloaded method a type checker knows only the first signature."""

    def __init__(self, part: str, method: Callable[Concatenate[Any, P], R]) -> None:
        self._method = method
        self._bound = attrgetter(f"{part}.{method.__name__}")

    @overload
    def __get__(self, handle: None, owner: type) -> Callable[Concatenate[Any, P], R]: ...
    @overload
    def __get__(self, handle: object, owner: type) -> Callable[P, R]: ...
    def __get__(self, handle: object | None, owner: type) -> Callable[..., R]:
        return self._method if handle is None else cast("Callable[P, R]", self._bound(handle))
