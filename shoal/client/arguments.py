"""Name the argument of the wrong type when a call of a handle fails because of it.

Laws:
- It costs nothing: arguments are checked only after a call has failed with an error that is not Shoal's.
- If all arguments are as annotated, the error stays as it is, because the caller is not at fault. So does the
  error of a call that does not fit the signature.
- `protocol.conformance` checks the fields of a request before anything is written. This module names arguments that keep
  a handle from making a request at all.

A handle that is composed of parts, each with methods of its own.

    class Thread:
        heads = of_part("_branches", ThreadBranches.heads)

A method is declared once, in its part, with its signature and docstring. The parts do not know the handle: each gets
what it needs when it is made.

Deletion, which the handles of counters, registers, sets, maps and budgets have in common.
"""

from __future__ import annotations

import collections.abc
import functools
import inspect
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from itertools import islice
from math import isfinite
from operator import attrgetter
from types import FunctionType, NoneType, UnionType
from typing import (
    Any,
    ClassVar,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
    overload,
)

from shoal.client.connection import StoreConnection
from shoal.errors import InvalidInput
from shoal.protocol.conformance import INT_MAX, INT_MIN, shown, surrogate
from shoal.protocol.requests import Deleted, Durability, ObjectWrite

_TOLD = (TypeError, AttributeError, ValueError, LookupError, OverflowError, RecursionError)
_ELEMENTS_MAX = 1000  # Elements of a collection that are checked.

_Class = TypeVar("_Class", bound=type[Any])
_Method = TypeVar("_Method", bound=Callable[..., Any])


def named(cls: _Class) -> _Class:
    """A class decorator for handles: if an argument's type makes a public method fail, it raises InvalidInput with its name."""
    for name, method in list(vars(cls).items()):
        if inspect.isfunction(method) and not name.startswith("_"):
            setattr(cls, name, _told(method))
    return cls


def named_method(method: _Method) -> _Method:
    """A decorator that does the same for one method."""
    return cast("_Method", _told(method))


def _told(method: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(method):

        @functools.wraps(method)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            try:
                return await method(*args, **kwargs)
            except _TOLD as error:
                _explain(method, args, kwargs, error)
                raise

        return awaited

    @functools.wraps(method)
    def called(*args: Any, **kwargs: Any) -> Any:
        try:
            outcome = method(*args, **kwargs)
        except _TOLD as error:
            _explain(method, args, kwargs, error)
            raise
        return _items(outcome, method, args, kwargs) if inspect.isasyncgen(outcome) else outcome

    return called


async def _items(
    source: AsyncGenerator[Any, Any], method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> AsyncGenerator[Any, None]:
    async with aclosing(source):
        while True:
            try:
                item = await anext(source)
            except StopAsyncIteration:
                return
            except _TOLD as error:
                _explain(method, args, kwargs, error)
                raise
            yield item


def _explain(method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception) -> None:
    """Look for the argument that caused `error`.

    Raises:
        InvalidInput: an argument is not as annotated.
    """
    try:
        bound = inspect.signature(method).bind(*args, **kwargs).arguments
        hints = get_type_hints(_of_arguments(method))
    except (TypeError, NameError):
        return  # The call does not fit the signature, or an annotation exists only for type checkers.
    given = list(bound.items())[1:]
    if given and inspect.signature(method).parameters[given[-1][0]].kind is inspect.Parameter.VAR_KEYWORD:
        options = given.pop()
        given += options[1].items()
        hints |= get_type_hints(*get_args(hints[options[0]])) if get_args(hints[options[0]]) else {}
    for name, value in given:
        problem = _problem(value, hints.get(name, Any))
        if problem is not None:
            raise InvalidInput(f"{name} {problem}. Nothing was written.", field=name) from error


def _of_arguments(method: Callable[..., Any]) -> Callable[..., Any]:
    """A function with the annotations of the arguments alone; that of the return value may exist only for type checkers."""
    annotated = FunctionType((lambda: None).__code__, inspect.unwrap(method).__globals__)
    annotated.__annotations__ = {name: told for name, told in method.__annotations__.items() if name != "return"}
    return annotated


def _problem(value: Any, annotation: Any) -> str | None:
    """The problem with an argument; None if its annotation reveals none."""
    if isinstance(value, str) and (at := surrogate(value)) is not None:
        return f"holds a lone surrogate (at {at}), which is not Unicode text"
    if _fits(value, annotation):
        return None
    return f"must be {_words(annotation)}; got {shown(value)}"


def _fits(value: Any, annotation: Any) -> bool:
    """Whether it is as annotated, as far as can be checked without consuming it."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return any(_fits(value, member) for member in arguments)
    if origin is Literal:
        return type(value) is str and value in arguments
    if annotation in (int, float):
        kinds = int if annotation is int else int | float
        return isinstance(value, kinds) and not isinstance(value, bool) and isfinite(value) and INT_MIN <= value <= INT_MAX
    if annotation in (None, NoneType):
        return value is None
    cls = origin or annotation
    if cls is Any or not isinstance(cls, type) or is_typeddict(cls) or getattr(cls, "_is_protocol", False):
        return True
    if not isinstance(value, cls) or (isinstance(value, str | bytes) and cls is not type(value) and cls is not object):
        return False
    return not arguments or _elements_fit(value, cls, arguments)


def _elements_fit(value: Any, cls: type, arguments: tuple[Any, ...]) -> bool:
    if isinstance(value, collections.abc.Mapping):
        pairs = islice(value.items(), _ELEMENTS_MAX)
        return all(_fits(key, arguments[0]) and _fits(item, arguments[-1]) for key, item in pairs)
    if isinstance(value, tuple) and cls is tuple:
        return Ellipsis in arguments or (len(value) == len(arguments) and all(map(_fits, value, arguments)))
    if isinstance(value, list | tuple | set | frozenset):
        return all(_fits(item, arguments[0]) for item in islice(value, _ELEMENTS_MAX))
    return True


_WORDS: dict[Any, str] = {
    str: "text",
    int: "an integer",
    float: "a number",
    bool: "True or False",
    bytes: "bytes",
    None: "None",
    NoneType: "None",
    collections.abc.Callable: "a function",
    collections.abc.Mapping: "a mapping",
    collections.abc.Sequence: "a list",
    collections.abc.Iterable: "an iterable",
}


def _words(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return " or ".join(map(_words, arguments))
    if origin is Literal:
        return f"one of {', '.join(map(repr, arguments))}"
    cls = origin or annotation
    words = _WORDS.get(cls) or (f"a {cls.__name__}" if isinstance(cls, type) else str(cls))
    inner = [argument for argument in arguments if argument is not Any and not isinstance(argument, TypeVar | list)]
    return f"{words} of {' and '.join(map(_words, inner))}" if inner and cls is not collections.abc.Callable else words


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


@named
class Deletable:
    """A handle of an object that can be deleted as a whole, by the request `_deletion`."""

    _connection: StoreConnection
    _deletion: ClassVar[type[Any]]
    space: str
    name: str

    async def delete(self, *, key: str | None = None, durability: Durability | None = None) -> bool:
        """Delete the object on every node. False if there was none.

        Writes made without knowing of the deletion are deleted too, even if they arrive later. The first write made with
        knowledge of it creates the object again, empty.
        """
        request: ObjectWrite[Deleted] = self._deletion(self.space, self.name)
        return (await self._connection.write(request, key=key, durability=durability)).existed
