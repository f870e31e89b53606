"""Check that the fields of a request have their annotated types, in one place for every way to a node.

The check stands at the entry of a session, and not in each handle, because a handle without it would bypass it. The node's
decoder would refuse a wrong type as well, but in other words, and not for an embedded store.

Laws:
- Every `Session` begins with this check: the node's own, and the one that sends requests to a node. So an
  embedded store and a served one reject the same arguments, with the same error, before anything
  is written or sent.
- A list or dict that is longer than its annotation allows is refused before its elements are looked at, and so are parts whose
  lists and dicts are longer together.
- A cursor that is larger than any answer's is refused before it is copied.
- A request that passes can be encoded, and decodes to an equal one.
- A subclass of `str`, `int`, `bytes`, `list` or `dict` is converted to its value: `Colour.RED` of a
  `StrEnum` is its text, a NumPy integer its number, a tuple a list. A `bool` is not an integer, nor an integer a `bool`.
- For each kind of request one expression is compiled from its annotations (`_Kind.test`). It is
  evaluated for every request and takes about a microsecond. Only if it is false, the wrong field is searched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from functools import cache
from operator import index
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import Struct

from shoal.errors import InvalidInput, TooLarge
from shoal.protocol.base import CURSOR_BYTES_MAX, Durability, Shape, Together

INT_MIN, INT_MAX = -(2**63), 2**64 - 1
"""The integers that msgpack holds."""
_SHOWN_CHARACTERS_MAX = 60

_Request = TypeVar("_Request", bound=Struct)


def conforming(request: _Request) -> _Request:
    """`request` if its fields have their annotated types; else an equal one with converted fields.

    Raises:
        InvalidInput: a field has another type, or holds text or a number that cannot be sent; the message names it.
    """
    return request if _holds(type(request))(request) else _made(request, "")


def check_manner(key: str | None, durability: Durability | None, stale: bool) -> None:
    """Check the arguments beside a request.

    Raises:
        InvalidInput: one has another type, or `durability` is none. The key's length is checked later.
    """
    if key is not None:
        _checked(_TEXT, key, "key")
    if durability is not None and (type(durability) is not str or durability not in _DURABILITIES):
        _checked(_DURABILITY, durability, "durability")
    if stale is not True and stale is not False:
        _checked(_FLAG, stale, "stale")


class _Kind:
    """The annotated type of a field."""

    words: str

    def test(self, value: str) -> str:
        """The source of an expression that is true if `value`, itself the source of one, has exactly this type."""
        raise NotImplementedError

    def made(self, value: Any, where: str) -> Any:
        """`value`, converted to the annotated class.

        Raises:
            _Mismatch: it is of another kind; `where` is its name.
            InvalidInput: it is of this kind, and cannot be sent.
        """
        raise NotImplementedError


class _Text(_Kind):
    words = "text"

    def test(self, value: str) -> str:
        return f"type({value}) is str and ({value}.isascii() or surrogate({value}) is None)"

    def made(self, value: Any, where: str) -> str:
        if not isinstance(value, str):
            raise _Mismatch(where, self.words, value)
        at = surrogate(value)
        if at is not None:
            raise InvalidInput(
                f"{where} holds a lone surrogate (at {at}), which is not Unicode text. Nothing was written. "
                'Replace it: text.encode("utf-8", "replace").decode().',
                field=where,
            )
        return str.__str__(value)


class _Integer(_Kind):
    words = "an integer"

    def test(self, value: str) -> str:
        return f"type({value}) is int and {INT_MIN} <= {value} <= {INT_MAX}"

    def made(self, value: Any, where: str) -> int:
        try:
            number = index(value)
        except Exception:  # `__index__` may raise anything.
            number = None
        if number is None or isinstance(value, bool):
            raise _Mismatch(where, self.words, value)
        if not INT_MIN <= number <= INT_MAX:
            raise InvalidInput(f"{where} must be an integer of 64 bits; this one is larger. Nothing was written.", field=where)
        return int(number)


class _Bytes(_Kind):
    words = "bytes"

    def test(self, value: str) -> str:
        return f"type({value}) is bytes"

    def made(self, value: Any, where: str) -> bytes:
        if not isinstance(value, bytes | bytearray | memoryview):
            raise _Mismatch(where, self.words, value)
        return bytes(value)


class _Cursor(_Bytes):
    """Bytes that were in an answer: no answer has more."""

    def test(self, value: str) -> str:
        return f"type({value}) is bytes and len({value}) <= {CURSOR_BYTES_MAX}"

    def made(self, value: Any, where: str) -> bytes:
        if isinstance(value, bytes | bytearray | memoryview) and memoryview(value).nbytes > CURSOR_BYTES_MAX:
            raise InvalidInput(
                f"{where} has {memoryview(value).nbytes} bytes, and a cursor at most {CURSOR_BYTES_MAX}. Nothing was written. "
                "Send back what an answer had.",
                field=where,
            )
        return super().made(value, where)


class _Flag(_Kind):
    words = "True or False"

    def test(self, value: str) -> str:
        return f"type({value}) is bool"

    def made(self, value: Any, where: str) -> bool:
        if type(value) is not bool:
            raise _Mismatch(where, self.words, value)
        return value


class _OneOf(_Kind):
    """One of some texts."""

    def __init__(self, allowed: tuple[str, ...]) -> None:
        self._allowed = allowed
        self.words = f"one of {', '.join(map(repr, allowed))}"

    def test(self, value: str) -> str:
        return f"type({value}) is str and {value} in {self._allowed!r}"

    def made(self, value: Any, where: str) -> str:
        if not isinstance(value, str) or value not in self._allowed:
            raise _Mismatch(where, self.words, value, meant=nearest(value, self._allowed))
        return str.__str__(value)


class _Either(_Kind):
    def __init__(self, kinds: tuple[_Kind, ...]) -> None:
        self._kinds = kinds
        self.words = " or ".join(kind.words for kind in kinds)

    def test(self, value: str) -> str:
        return "(" + " or ".join(kind.test(value) for kind in self._kinds) + ")"

    def made(self, value: Any, where: str) -> Any:
        refused: Exception | None = None
        for kind in self._kinds:
            try:
                return kind.made(value, where)
            except (_Mismatch, InvalidInput) as refusal:
                # An error from inside the value says more than that it is of none of the types.
                if not isinstance(refusal, _Mismatch) or refusal.where != where:
                    refused = refusal
        raise refused or _Mismatch(where, self.words, value)


class _Optional(_Kind):
    """None, or one of a kind."""

    def __init__(self, kind: _Kind) -> None:
        self._kind = kind
        self.words = f"{kind.words} or None"

    def test(self, value: str) -> str:
        return f"({value} is None or {self._kind.test(value)})"

    def made(self, value: Any, where: str) -> Any:
        try:
            return None if value is None else self._kind.made(value, where)
        except _Mismatch as refusal:
            raise (_Mismatch(where, self.words, value, meant=refusal.meant) if refusal.where == where else refusal) from None


def too_many(where: str | None, most: int) -> TooLarge:
    """The error for a list or dict of more elements than a request may have there; `where` names it, if that is known."""
    what = "a part of the request" if where is None else where
    return TooLarge(
        f"{what} has too many elements: one request may have at most {most} there. Nothing was written. Send several requests.",
        field=where,
        most=most,
    )


def check_together(parts: Iterable[Struct], most: int, where: str) -> None:
    """Check that the lists and dicts of all parts have at most so many elements together; `where` names the parts.

    Raises:
        TooLarge: they have more.
    """
    if elements_of(parts) > most:
        raise too_many_together(where, most)


def together_of(kind: type[Struct]) -> dict[int, tuple[str, int]]:
    """The fields of a request whose parts have a bound together, by their places: their names, and the bounds."""
    return {
        place: (field.name, mark.most)
        for place, field in enumerate(msgspec.structs.fields(kind))
        for mark in getattr(field.type, "__metadata__", ())
        if isinstance(mark, Together)
    }


def elements_of(parts: Iterable[Struct]) -> int:
    """The number of elements of all lists and dicts that are fields of these."""
    found = 0
    for part in parts:
        for name in getattr(part, "__struct_fields__", ()):
            field = getattr(part, name)
            if type(field) in _CONTAINERS:
                found += len(field)
    return found


_CONTAINERS = frozenset({list, dict, tuple, set})


def too_many_together(where: str | None, most: int) -> TooLarge:
    """The error for parts of a request that have too many elements together."""
    return TooLarge(
        f"the lists and maps of its {where} have more than {most} elements together. Nothing was written. "
        "Send several requests.",
        field=where,
        most=most,
    )


class _ListOf(_Kind):
    def __init__(self, item: _Kind, *, most: int | None = None, together: int | None = None) -> None:
        self._item, self._most, self._together = item, most, together
        self.words = f"a list of {item.words}"

    def test(self, value: str) -> str:
        item = f"item{value.count('item')}"
        short = "" if self._most is None else f"len({value}) <= {self._most} and "
        short += "" if self._together is None else f"elements_of({value}) <= {self._together} and "
        return f"type({value}) is list and {short}not ({value} and [0 for {item} in {value} if not ({self._item.test(item)})])"

    def made(self, value: Any, where: str) -> list[Any]:
        if not isinstance(value, list | tuple):
            raise _Mismatch(where, self.words, value)
        if self._most is not None and len(value) > self._most:
            raise too_many(where, self._most)
        if self._together is not None:
            check_together(value, self._together, where)
        return [self._item.made(item, f"{where}[{place}]") for place, item in enumerate(value)]


class _TupleOf(_Kind):
    def __init__(self, items: tuple[_Kind, ...]) -> None:
        self._items = items
        self.words = f"a pair of {' and '.join(item.words for item in items)}"

    def test(self, value: str) -> str:
        parts = " and ".join(item.test(f"{value}[{place}]") for place, item in enumerate(self._items))
        return f"type({value}) is tuple and len({value}) == {len(self._items)} and {parts}"

    def made(self, value: Any, where: str) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple) or len(value) != len(self._items):
            raise _Mismatch(where, self.words, value)
        parts = zip(self._items, value, strict=True)
        return tuple(item.made(part, f"{where}[{place}]") for place, (item, part) in enumerate(parts))


class _DictOf(_Kind):
    def __init__(self, key: _Kind, item: _Kind, *, most: int | None = None) -> None:
        self._key, self._item, self._most = key, item, most
        self.words = f"a dict of {key.words} to {item.words}"

    def test(self, value: str) -> str:
        wrong = f"not ({self._key.test('key')} and {self._item.test('item')})"
        short = "" if self._most is None else f"len({value}) <= {self._most} and "
        return f"type({value}) is dict and {short}not ({value} and [0 for key, item in {value}.items() if {wrong}])"

    def made(self, value: Any, where: str) -> dict[Any, Any]:
        if not isinstance(value, Mapping):
            raise _Mismatch(where, self.words, value)
        if self._most is not None and len(value) > self._most:
            raise too_many(where, self._most)
        return {
            self._key.made(key, f"a key of {where}"): self._item.made(item, f"{where}[{key!r:.{_SHOWN_CHARACTERS_MAX}}]")
            for key, item in value.items()
        }


_STRUCTS: dict[str, type[Struct]] = {}
"""The structs within requests, by name."""


class _StructOf(_Kind):
    """One of several structs, whose fields are checked too."""

    def __init__(self, classes: tuple[type[Struct], ...]) -> None:
        self._classes = {cls.__name__: cls for cls in classes}
        _STRUCTS.update(self._classes)
        self.words = " or ".join(sorted(self._classes))

    def test(self, value: str) -> str:
        cls = f"type({value})"
        known = f"{cls}.__name__ in {tuple(self._classes)!r} and structs[{cls}.__name__] is {cls}"
        return f"{known} and holds({cls})({value})"

    def made(self, value: Any, where: str) -> Any:
        if self._classes.get(type(value).__name__) is not type(value):
            raise _Mismatch(where, self.words, value)
        return _made(value, f"{where}.")


_DURABILITIES = frozenset(get_args(Durability))
_TEXT, _FLAG, _DURABILITY = _Text(), _Flag(), _OneOf(get_args(Durability))
_PLAIN: dict[Any, _Kind] = {str: _TEXT, int: _Integer(), bytes: _Bytes(), bool: _FLAG}


@cache  # One entry per kind of request.
def _kinds(cls: type[Struct]) -> dict[str, _Kind]:
    """The kinds of the fields, by name."""
    return {field.name: _kind(field.type) for field in msgspec.structs.fields(cls)}


def _kind(annotation: Any, most: int | None = None) -> _Kind:
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        bounds = [mark.max_length for mark in arguments[1:] if isinstance(mark, msgspec.Meta)]
        if Shape.CURSOR in arguments:
            return _Cursor()
        together = [mark.most for mark in arguments[1:] if isinstance(mark, Together)]
        if together:
            return _ListOf(_kind(get_args(arguments[0])[0]), most=bounds[0], together=together[0])
        return _kind(arguments[0], *bounds)
    if origin is Literal:
        return _OneOf(arguments)
    if origin in (Union, UnionType):
        return _union(arguments)
    if isinstance(annotation, type) and issubclass(annotation, Struct):
        return _StructOf((annotation,))
    kinds = tuple(_kind(argument) for argument in arguments)
    if origin is tuple:
        return _TupleOf(kinds)
    containers: dict[Any, Callable[..., _Kind]] = {list: _ListOf, dict: _DictOf}
    return containers[origin](*kinds, most=most)


def _union(members: tuple[Any, ...]) -> _Kind:
    present = tuple(member for member in members if member is not NoneType)
    kind: _Kind
    if all(isinstance(member, type) and issubclass(member, Struct) for member in present):
        kind = _StructOf(present)
    else:
        kind = _kind(present[0]) if len(present) == 1 else _Either(tuple(_kind(member) for member in present))
    return kind if len(present) == len(members) else _Optional(kind)


@cache
def _holds(cls: type[Struct]) -> Callable[[Any], bool]:
    """The compiled function that says whether all fields of a request of this class have exactly their annotated types."""
    tests = [kind.test(f"request.{name}") for name, kind in _kinds(cls).items()]
    source = f"lambda request: {' and '.join(tests) or 'True'}"
    names = {"surrogate": surrogate, "elements_of": elements_of, "holds": _holds, "structs": _STRUCTS}
    made: Callable[[Any], bool] = eval(source, names)
    return made


def _made(request: _Request, within: str) -> _Request:
    fields = {name: _checked(kind, getattr(request, name), within + name) for name, kind in _kinds(type(request)).items()}
    return type(request)(**fields)


def _checked(kind: _Kind, value: Any, where: str) -> Any:
    """`value` as `kind` makes it.

    Raises:
        InvalidInput: it is of another kind, or cannot be sent.
    """
    try:
        return kind.made(value, where)
    except _Mismatch as refusal:
        message = f"{refusal.where} must be {refusal.words}; got {shown(refusal.value)}.{refusal.meant} Nothing was written."
        raise InvalidInput(message, field=refusal.where) from None


# ── telling ───────────────────────────────────────────────────────────────────


class _Mismatch(Exception):
    """The value at `where` has another type; `meant` is a sentence, after a space. It never leaves this module."""

    def __init__(self, where: str, words: str, value: object, *, meant: str = "") -> None:
        super().__init__(where)
        self.where, self.words, self.value, self.meant = where, words, value, meant


def check_word(word: object, words: Iterable[str], where: str) -> None:
    """Check an argument that is one of some words and stands in no request; `where` is its name.

    Raises:
        InvalidInput: it is none of them; the nearest one is named.
    """
    allowed = tuple(words)
    if not isinstance(word, str) or word not in allowed:
        wanted = f"{where} must be one of {', '.join(map(repr, allowed))}"
        raise InvalidInput(f"{wanted}; got {shown(word)}.{nearest(word, allowed)} Nothing was written.", field=where)


def nearest(word: object, words: Iterable[str]) -> str:
    """A sentence, after a space, with the one of `words` that is meant by this one; empty if none is similar."""
    near = get_close_matches(word.lower(), list(words), n=1) if isinstance(word, str) else []
    return f" Did you mean {near[0]!r}?" if near else ""


def shown(value: object) -> str:
    """The value with its class if it is plain, else its class alone; for error texts."""
    cls = type(value)
    if value is None:
        return "None"
    if cls not in (bool, int, float, str, bytes) or (cls is int and not INT_MIN <= value <= INT_MAX):  # type: ignore[operator]
        return f"{'an' if cls.__name__[:1] in 'aeiouAEIOU' else 'a'} {cls.__name__}"
    return f"{value!a:.{_SHOWN_CHARACTERS_MAX}} ({cls.__name__})"


def surrogate(text: str) -> int | None:
    """The index of the first lone surrogate; None if there is none."""
    try:
        str.encode(text)
    except UnicodeEncodeError as error:
        return error.start
    return None
