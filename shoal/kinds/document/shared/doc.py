"""A document of the engine, what all shared types in it have in common, and its maps and arrays.

Laws:
- Every shared type that comes out of a document, or is put into one, is of this package: one that was made with pycrdt's
  constructors becomes so when it is put in (its class is changed), so that there is no second way to count.
- All work of the engine on a document runs in a transaction of it. A panic there leaves as EngineFailed, and the document is
  `broken`: it is in no known state, and refuses everything from then on.

Shared maps and arrays: pycrdt's, with Python's indices, and with values that are checked before the engine sees them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from inspect import signature
from typing import Any, Never, TypeVar, cast

import pycrdt
from pycrdt._base import BaseType

from shoal.errors import EngineFailed, InvalidValue, ShoalError, Unsupported
from shoal.kinds.document.shared.plain import Where, check_key, check_new, check_root
from shoal.kinds.document.shared.positions import item, place, span, sticky
from shoal.raising import engine_failed, is_panic

_BROKEN = "This copy of the document is used no more, and its edits that are not written are lost. Open the document again."


class Doc(pycrdt.Doc[Any]):
    """A document of the engine. `broken` says how the engine failed, or is empty; `edition` grows before each change."""

    broken: str = ""
    edition: int = 0
    observer_failed: Callable[[Exception], None] | None = None
    """Takes the errors of observers. None: they are raised at the end of the transaction, so by the edit."""

    def transaction(self, origin: Any = None) -> pycrdt.Transaction:
        """A transaction (`pycrdt.Doc.transaction`).

        Raises:
            EngineFailed: the document is broken.
        """
        if self._txn is not None:
            return super().transaction(origin)
        self.check_sound()
        return _Transaction(self, origin=origin)

    def _read_transaction(self, _txn: Any) -> pycrdt.ReadTransaction:
        return _ReadTransaction(self, _txn)

    def apply_update(self, update: bytes) -> None:
        """Apply an update (`pycrdt.Doc.apply_update`)."""
        self.edition += 1
        super().apply_update(update)

    def __setitem__(self, key: str, value: Any) -> None:
        check_root(value)
        super().__setitem__(key, adopted(value))

    @property
    def _roots(self) -> dict[str, Any]:
        with self.transaction() as transaction:
            assert transaction._txn is not None
            roots = self._doc.roots(transaction._txn)
            return {key: None if found is None else owned(self, found) for key, found in roots.items()}

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold what the engine does outside of transactions: undo, for example.

        Raises:
            EngineFailed: it panicked, or the document was broken before.
        """
        self.check_sound()
        self.edition += 1
        try:
            yield
        except BaseException as error:
            if not is_panic(error):
                raise
            self.broken = str(error)
            raise _failed(self.broken) from None

    def check_sound(self) -> None:
        """
        Raises:
            EngineFailed: the document is broken.
        """
        if self.broken:
            raise _failed(self.broken)

    def failed(self, panic: BaseException) -> EngineFailed:
        """Note a panic, and return the error to raise instead."""
        self.broken = self.broken or str(panic) or "no reason given"
        return _failed(self.broken)


def _failed(reason: str) -> EngineFailed:
    return engine_failed("the Yjs engine failed in this document", reason, _BROKEN)


class _Transaction(pycrdt.Transaction):
    _doc: Doc

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if is_panic(error):
            assert error is not None
            self._doc.failed(error)  # Before the commit, so that no observer takes what it brings.
        try:
            super().__exit__(kind, error, trace)
        except BaseException as late:
            if self._doc.broken or is_panic(late):
                raise self._doc.failed(late) from None
            if isinstance(late, ExceptionGroup) and len(late.exceptions) == 1 and isinstance(late.exceptions[0], ShoalError):
                raise late.exceptions[0] from None  # Of an observer, which pycrdt wraps: the mirror takes no more edits.
            raise
        if is_panic(error):
            raise self._doc.failed(error) from None  # type: ignore[arg-type]


class _ReadTransaction(pycrdt.ReadTransaction):
    _doc: Doc

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        super().__exit__(kind, error, trace)
        if is_panic(error):
            raise self._doc.failed(error) from None  # type: ignore[arg-type]


# ── types ─────────────────────────────────────────────────────────────────────

_OURS: dict[type[Any], type[Any]] = {}  # By pycrdt's class.
_BY_NAME: dict[str, type[Any]] = {}  # By the name of the engine's class.

T = TypeVar("T", bound=type[Any])


def shared(kind: T) -> T:
    """Register a shared type of this package, and give it what all have in common. Its first base is pycrdt's class."""
    base = kind.__bases__[0]
    _OURS[base] = _BY_NAME[base.__name__] = kind
    for name, function in _COMMON.items():
        if name not in vars(kind):
            setattr(kind, name, function)
    return kind


def owned(doc: pycrdt.Doc[Any], found: Any) -> Any:
    """The value that the engine returned: a shared type of this package for one of the engine's, anything else as it is."""
    kind = _BY_NAME.get(type(found).__name__) if type(found).__module__ == "builtins" else None
    return found if kind is None else kind(_doc=doc, _integrated=found)


def adopted(value: Any) -> Any:
    """A shared type that is being put into a document, from now on of this package.

    Raises:
        InvalidValue: it is of a class derived from pycrdt's, which would count otherwise.
    """
    kind = type(value)
    if kind in _OURS:
        value.__class__ = _OURS[kind]
    elif kind not in _OURS.values() and hasattr(value, "is_prelim"):
        raise InvalidValue(
            f"a document holds pycrdt's own shared types, and {kind.__name__} is derived from one: its positions would count "
            "bytes. Nothing was written. Use pycrdt's class itself."
        )
    return value


def observe_deep(root: Any, callback: Callable[[list[Any]], None]) -> Any:
    """Have the engine report the changes of a root and everything in it, as it counts. `root.unobserve` ends it."""
    return BaseType.observe_deep(root, callback)


def _maybe_as_type_or_doc(self: Any, found: Any) -> Any:
    return owned(self.doc, found)


def _do_and_integrate(self: Any, action: str, value: Any, transaction: Any, *arguments: Any) -> None:
    # Its own nodes and values are put in by the methods of the class that it has by then.
    BaseType._do_and_integrate(self, action, adopted(value), transaction, *arguments)


def _forbid_read_transaction(self: Any, transaction: Any) -> None:
    # Each method of pycrdt's that changes a shared type begins with this.
    BaseType._forbid_read_transaction(self, transaction)
    if isinstance(self.doc, Doc):
        self.doc.edition += 1


def _observe(self: Any, callback: Callable[..., None]) -> Any:
    """Observe, as pycrdt does. Positions in the event of a text count characters."""
    given = len(signature(callback).parameters)
    recounted = self._recounting()

    def tell(event: Any, transaction: Any) -> None:
        for slot in ("target", "delta", "keys"):
            if hasattr(event, slot):
                _adopt_within(getattr(event, slot))
        recounted(event)
        failed = getattr(self.doc, "observer_failed", None)
        try:
            callback(*(event, transaction)[:given])
        except Exception as error:
            if failed is None:
                raise
            failed(error)

    subscription = BaseType.observe(self, cast("Callable[[Any], None]", tell))
    self.__dict__.setdefault("_callbacks", {})[subscription] = callback
    return subscription


def _unobserve(self: Any, subscription: Any) -> None:
    """End an observation, as pycrdt does."""
    subscription = self.__dict__.get("_moved", {}).pop(subscription, subscription)
    self.__dict__.get("_callbacks", {}).pop(subscription, None)
    BaseType.unobserve(self, subscription)


def move(handle: Any, to: Any) -> None:
    """Let a shared type lead where `to` does, which is of another document; who observes it goes on doing so."""
    callbacks = handle.__dict__.pop("_callbacks", {})
    known = {now: first for first, now in handle.__dict__.pop("_moved", {}).items()}  # The subscription that was returned.
    for subscription in list(handle._subscriptions):
        BaseType.unobserve(handle, subscription)
    handle._doc, handle._integrated = to._doc, to._integrated
    handle._moved = {known.get(before, before): handle.observe(callback) for before, callback in callbacks.items()}


def _observe_deep(self: Any, callback: Callable[..., None]) -> Never:
    """Not offered, because the engine counts the bytes of texts that it deletes, and does not tell which they were.

    Raises:
        Unsupported: always.
    """
    raise Unsupported(
        "observe_deep would count bytes in texts. Use changes() of the document, which tells every change in it, or observe()."
    )


def _as_counted(self: Any) -> Callable[[Any], None]:
    return lambda event: None


def _adopt_within(held: Any) -> None:
    if isinstance(held, dict):
        held = held.values()
    elif not isinstance(held, list):
        if hasattr(held, "is_prelim"):
            adopted(held)
        return
    for each in held:
        _adopt_within(each)


_COMMON: dict[str, Callable[..., Any]] = {
    "_maybe_as_type_or_doc": _maybe_as_type_or_doc,
    "_do_and_integrate": _do_and_integrate,
    "_forbid_read_transaction": _forbid_read_transaction,
    "_recounting": _as_counted,
    "observe": _observe,
    "unobserve": _unobserve,
    "observe_deep": _observe_deep,
}


def check_put(value: Any, where: Where) -> Any:
    """Check and adopt what is to be put into a shared type. Raises as `check_new` and `adopted`."""
    check_new(value, where)
    return adopted(value) if hasattr(value, "is_prelim") else value


_ARRAY = "array"
_PLAIN = frozenset({str, int, float, bool, type(None)})


@shared
class Map(pycrdt.Map[Any]):
    """A shared map."""

    def __setitem__(self, key: str, value: Any) -> None:
        self._set(key, value)

    def _set(self, key: str, value: Any) -> None:
        check_key(key)
        super()._set(key, check_put(value, "map"))

    def put_grown(self, key: str, value: Any) -> None:
        """Set a value; dicts and lists become shared maps and arrays, at every level. The caller has checked that a document
        can hold them. No object of pycrdt's is made for each of them, which would take three times as long.
        """
        with self.doc.transaction() as transaction:
            self._forbid_read_transaction(transaction)
            _put(self.integrated, transaction._txn, key, value)

    def plain_of(self, keys: Iterable[str]) -> dict[str, Any]:
        """Of these keys those that have a text, number, bool or null as their value, and no shared type."""
        found = {}
        with self.doc.transaction() as transaction:
            get, has, inner = self.integrated.get, self.integrated.has, transaction._txn
            for key in keys:
                if has(inner, key):  # One with a mere format has no value.
                    value = get(inner, key)
                    if type(value) in _PLAIN:
                        found[key] = value
        return found

    def put_plain(self, entries: dict[str, Any]) -> None:
        """Set several keys to values that are no shared types. The caller has checked that a document can hold them."""
        if not entries:
            return
        with self.doc.transaction() as transaction:
            self._forbid_read_transaction(transaction)
            insert, inner = self.integrated.insert, transaction._txn
            for key, value in entries.items():
                insert(inner, key, value)

    def update(self, value: dict[str, Any]) -> None:
        """Set several keys (`pycrdt.Map.update`)."""
        with self.doc.transaction():
            for key, each in value.items():
                self._set(key, each)

    def _init(self, value: dict[str, Any] | None) -> None:
        # It was checked with all that it begins with, when it or what it is in was put into the document.
        for key, each in (value or {}).items():
            super()._set(key, each)


@shared
class Array(pycrdt.Array[Any]):
    """A shared array."""

    def _set(self, index: int, value: Any) -> None:
        super()._set(index, check_put(value, "array"))

    def _init(self, value: list[Any] | None) -> None:
        # As of a map.
        for index, each in enumerate(value or ()):
            super()._set(index, each)

    def insert_plain(self, index: int, elements: Sequence[Any]) -> None:
        """Insert elements that are no shared types, before the one at `index`, which is not negative. The caller has checked
        that a document can hold them.
        """
        with self.doc.transaction() as transaction:
            self._forbid_read_transaction(transaction)
            insert, inner = self.integrated.insert, transaction._txn
            for at, element in enumerate(elements, index):
                insert(inner, at, element)

    def _check_index(self, idx: Any) -> int:
        return item(idx, len(self), _ARRAY)

    def put_grown(self, index: int, value: Any) -> None:
        """Insert a value before the element at `index`, which is not negative. As `Map.put_grown`."""
        with self.doc.transaction() as transaction:
            self._forbid_read_transaction(transaction)
            _put(self.integrated, transaction._txn, index, value)

    def __getitem__(self, key: Any) -> Any:
        with self.doc.transaction():
            if isinstance(key, slice):
                return [super(Array, self).__getitem__(index) for index in range(*key.indices(len(self)))]
            return super().__getitem__(self._check_index(key))

    def __setitem__(self, key: Any, value: Any) -> None:
        with self.doc.transaction():
            if isinstance(key, slice):
                start, stop = span(key, len(self), _ARRAY)
                wanted = [check_put(each, "array") for each in value]
            else:
                start = self._check_index(key)
                stop, wanted = start + 1, [check_put(value, "array")]
            self._remove(start, stop)
            for index, each in enumerate(wanted, start):
                self._set(index, each)

    def __delitem__(self, key: Any) -> None:
        with self.doc.transaction():
            start, stop = span(key, len(self), _ARRAY) if isinstance(key, slice) else (self._check_index(key), None)
            self._remove(start, start + 1 if stop is None else stop)

    def _remove(self, start: int, stop: int) -> None:
        if start < stop:
            super().__delitem__(slice(start, stop))

    def insert(self, index: int, object: Any) -> None:
        """Insert an element before the one at `index`, or at the end.

        Raises:
            IndexError, TypeError: there is no such place.
            InvalidValue: a document cannot hold the value.
        """
        with self.doc.transaction():
            self._set(place(index, len(self), _ARRAY), object)

    def sticky_index(self, index: int, assoc: pycrdt.Assoc = pycrdt.Assoc.AFTER) -> pycrdt.StickyIndex:
        """A sticky index, as pycrdt makes it. The end of an array has nothing after it: use `Assoc.BEFORE` there. Raises as
        `insert`.
        """
        with self.doc.transaction():
            return super().sticky_index(sticky(index, len(self), assoc, _ARRAY), assoc)


def _put(into: Any, inner: Any, place: Any, value: Any) -> None:
    """Put a value into the engine's own map or array, within its transaction."""
    if isinstance(value, dict):
        entries = into.insert_map_prelim(inner, place)
        for key, each in value.items():
            _put(entries, inner, key, each)
    elif isinstance(value, list):
        elements = into.insert_array_prelim(inner, place)
        for index, each in enumerate(value):
            _put(elements, inner, index, each)
    else:
        into.insert(inner, place, value)
