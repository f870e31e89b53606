"""A document of the engine, and what all shared types in it have in common.

Laws:
- Every shared type that comes out of a document, or is put into one, is of this package: one that was made with pycrdt's
  constructors becomes so when it is put in (its class is changed), so that there is no second way to count.
- All work of the engine on a document runs in a transaction of it. A panic there leaves as EngineFailed, and the document is
  `broken`: it is in no known state, and refuses everything from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import signature
from typing import Any, Never, TypeVar, cast

import pycrdt
from pycrdt._base import BaseType

from shoal.errors import EngineFailed, InvalidValue, ShoalError, Unsupported
from shoal.kinds.document.shared.plain import Where, check_new, check_root
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


def _adopt_within(value: Any) -> None:
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list):
        if hasattr(value, "is_prelim"):
            adopted(value)
        return
    for each in value:
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
