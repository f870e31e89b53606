"""The content of a mirror: its roots, undo, remaking after a cut character, and its beginnings.

The content of a mirror: the engine's document, and the kinds of its roots.

Laws:
- An edit made here calls `edited` at the end of its transaction; an edit that came from the node does not.
- While the content is traced, each transaction reports its differences; otherwise they are not computed.
- An update that cuts a character here is applied to a document that was made anew.
- The node settles the kind of a root; until then it is the kind declared here.

Undo the edits made through one mirror, but no edits of others.

Laws:
- A step is one transaction. A transaction that came from the node is not a step: it is applied under an
  origin of its own, which the engine does not follow.
- A transaction that only uses roots for the first time is not a step.
- At most twice `steps_max` steps are kept; beyond that the oldest are forgotten. Content that a kept step
  deleted stays in memory until then.
- If the document is made anew, all steps are forgotten.

Make a mirror's engine document anew, because an update cuts a character that it holds whole.

Laws:
- The new document holds the same updates, under the same client id, with U+FFFD for each half of what is cut: see
  `shoal.kinds.document.state.surrogates`. It happens between transactions, before the update is applied.
- Roots that users hold lead to the new document, and their observers observe that. Parts within them lead to the old one,
  which nobody sees any more: using one raises an error that says to take it from its root again.

The beginnings of a mirrored document, as nodes have named them.

A beginning that was acknowledged under `local` can die with its node's disk while a mirror still shows it. The next node
may have another, and then no node knows both, so none could tell which one counts.

Law: of several beginnings only a node decides which one counts, and a mirror never takes the content of a second one from a
node that does not know the first. It restores the first before: then the node tells what does not count.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, NoReturn

import pycrdt

from shoal.errors import InvalidInput
from shoal.kinds.document.shared.doc import Doc, move, observe_deep
from shoal.kinds.document.state import genesis, yjs
from shoal.kinds.document.state.conflicts import Conflicts, Overwritten
from shoal.kinds.document.state.content import Difference, DiffMirror, check_kind, open_root, to_py
from shoal.kinds.document.state.document import RootKind
from shoal.kinds.document.state.live import EMPTY, engine
from shoal.kinds.document.state.surrogates import Cut, Fitted, Pairs, fit, is_wide, pairs_of, rewritten
from shoal.protocol.requests import Beginning, DocumentState, RestoreBeginning
from shoal.records import NamedTuple

ARRIVED = "node"
"""The origin of transactions that apply what came from the node."""


class Undo:
    """The steps of one mirror. Call `scope` with each root, and `settle` between transactions."""

    def __init__(self, doc: Callable[[], Doc], steps_max: int) -> None:
        self._doc = doc
        self._steps_max = steps_max
        self._scopes: dict[str, Any] = {}
        self._new: list[Any] = []
        self._ticks = count()
        self._steps = 0  # An upper bound.
        self._manager = self._made([])

    def scope(self, name: str, root: Any) -> None:
        """Follow the edits of a root."""
        if name not in self._scopes:
            self._scopes[name] = root
            self._new.append(root)

    def settle(self) -> None:
        """Let the engine follow the new roots. Do not call it within a transaction."""
        while self._new:  # The engine cannot do so within a transaction.
            with self._doc().held():
                self._manager.expand_scope(self._new.pop())

    def edited(self) -> None:
        """Count a local transaction."""
        self._steps += 1

    def undo(self) -> bool:
        """Undo the last step; False if there is none."""
        with self._doc().held():
            return self._manager.undo()

    def redo(self) -> bool:
        """Redo the last step that was undone; False if there is none."""
        with self._doc().held():
            return self._manager.redo()

    def trim(self) -> None:
        """Forget the oldest steps if there are too many. Do not call it within a transaction."""
        if self._steps <= 2 * self._steps_max:
            return
        with self._doc().held():
            kept = self._manager.undo_stack[-self._steps_max :]
            self._manager = self._made(kept)
        self._steps = len(kept)

    def forget(self) -> None:
        """Forget all steps, and follow the roots in the document that was made anew."""
        self._steps = 0
        self._new.clear()
        self._manager = self._made([])

    def _made(self, kept: list[pycrdt.StackItem[Any]]) -> pycrdt.UndoManager:
        # Transactions are never joined to one step, so that the clock only has to increase.
        return pycrdt.UndoManager(
            scopes=list(self._scopes.values()),
            capture_timeout_millis=0,
            timestamp=self._ticks.__next__,  # Not what holds `self`: the collector does not see what the engine holds.
            undo_stack=kept,
        )


def remade(doc: pycrdt.Doc[Any], cut: Collection[Cut]) -> Doc | None:
    """The document with these pairs replaced; None if all of them are deleted."""
    snapshot = doc.get_update()
    wanted = rewritten(snapshot, cut)
    if wanted is snapshot:
        return None
    made = Doc(client_id=doc.client_id)
    made.apply_update(wanted)
    return made


def move_all(roots: Mapping[str, Any], kinds: Mapping[str, RootKind], old: pycrdt.Doc[Any], new: pycrdt.Doc[Any]) -> None:
    """Let roots that are held lead to the new document, and the old one raise."""
    for subscription in list(old._subscriptions):
        old.unobserve(subscription)
    for name, root in roots.items():
        move(root, open_root(new, name, kinds[name]))
    old.transaction = _raise_moved  # type: ignore[method-assign]


def replaced(before: Any, after: Any, path: tuple[str | int, ...] = ()) -> Iterator[Difference]:
    """The texts that differ between two shown contents of one shape, each `set` as a whole."""
    if isinstance(before, dict) and isinstance(after, dict) and "text" not in before:
        for key in before:
            yield from replaced(before[key], after[key], (*path, key))
    elif isinstance(before, list) and isinstance(after, list):
        for index, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from replaced(old, new, (*path, index))
    elif before != after:
        yield Difference("set", path, before, after)


def _raise_moved(origin: Any = None) -> NoReturn:
    raise InvalidInput(
        "another editor has cut a character of this document in two, and its content was made anew. Nothing was written. "
        "Take this part of the document from its root again."
    )


class Transacted(NamedTuple):
    """The result of a transaction."""

    update: bytes
    differences: list[Difference]  # Empty if the content is not traced.
    overwritten: list[Overwritten]  # Empty if the content is not traced.


class Content:
    """The engine's document. The engine does not keep the owner of `edited`, a bound method, alive; edits raise its errors."""

    def __init__(self, *, client_id: int, edited: Callable[[Transacted], None]) -> None:
        self.doc = Doc(client_id=client_id)
        self.outside = asyncio.Event()  # Set while no transaction of the user's is open.
        self.outside.set()
        self._settled: dict[str, RootKind] = {}
        self._declared: dict[str, RootKind] = {}  # Declared here, and not yet written.
        self._arriving: bytes | None = None
        self._arrived: Transacted | None = None
        self._traced: dict[str, Any] | None = None  # The traced roots; the engine's subscriptions live as long as they.
        self._differences: list[Difference] = []
        self._conflicts = Conflicts()
        self._edited = weakref.WeakMethod(edited)
        self._pairs = Pairs()
        self._held: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()  # Roots, by name.
        _observe(self)

    @property
    def roots(self) -> dict[str, RootKind]:
        """The kinds of the roots, including those declared here."""
        return {**self._declared, **self._settled}

    @property
    def declared(self) -> dict[str, RootKind]:
        """The kinds that were declared here and are not yet sent to the node."""
        return dict(self._declared)

    def root(self, name: str, kind: RootKind) -> Any:
        """The root `name`, declared as a `kind` if it is new.

        Raises:
            RootConflict: it is of another kind.
        """
        if name not in self.roots:
            self._declared[name] = kind
        check_kind(name, kind, self.roots[name])
        self._trace_new()
        root = self._held.get(name)
        if root is None:
            root = self._held[name] = open_root(self.doc, name, kind)
        return root

    def trace(self) -> None:
        """Report the differences of each transaction from now on."""
        if self._traced is None:
            self._traced = {}
            self._conflicts.add(self.doc.get_update())
            self._trace_new()

    def untrace(self) -> None:
        """Stop computing the differences of transactions."""
        for root in (self._traced or {}).values():
            for subscription in list(root._subscriptions):
                root.unobserve(subscription)
        self._traced = None
        self._differences = []
        self._conflicts = Conflicts()

    def _trace_new(self) -> None:
        if self._traced is None:
            return
        for name, kind in self.roots.items():
            if name not in self._traced:
                root = self._traced[name] = open_root(self.doc, name, kind)
                observe_deep(root, _tracer(self, DiffMirror(name, root)))

    def settle(self, roots: dict[str, RootKind]) -> None:
        """Note that the node has these kinds."""
        for name, kind in roots.items():
            self._settled.setdefault(name, kind)
            self._declared.pop(name, None)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make the edits within one update; nothing arrives until the outermost transaction has ended."""
        nested = not self.outside.is_set()
        self.outside.clear()
        try:
            with self.doc.transaction():
                yield
        finally:
            if not nested:
                self.outside.set()

    def take(self, update: bytes, roots: dict[str, RootKind]) -> Transacted | None:
        """Apply an update that came from the node, and return its changes; None if it changed nothing.

        Raises:
            RootConflict: a root was declared here as another kind.
            InvalidInput: the engine rejects the update.
        """
        for name, kind in roots.items():
            check_kind(name, self._declared.get(name, kind), kind)
        self._settled.update(roots)
        self._declared = {name: kind for name, kind in self._declared.items() if name not in roots}
        self._trace_new()
        if update == EMPTY:
            return None
        with engine("an update from the node was refused by the Yjs engine"):
            fitted = self._fitted(update)
            if fitted.broken:
                self._remake(fitted.broken)
        self._arriving, self._arrived = update, None
        self.doc.observer_failed = _report  # The mirror goes on.
        try:
            with engine("an update from the node was refused by the Yjs engine"), self.doc.transaction(origin=ARRIVED):
                self.doc.apply_update(fitted.updates[0])
        finally:
            self._arriving = self.doc.observer_failed = None
        self._pairs.add(fitted.whole)
        if self._arrived is None and self._differences:
            return self._told(EMPTY)
        return self._arrived  # None if it was our own edit, coming back.

    def update_since(self, state: bytes) -> bytes:
        """The update that a replica with this state vector lacks."""
        return self.doc.get_update(self._pairs.backed(state))

    def _fitted(self, update: bytes) -> Fitted:
        if not self._pairs and not is_wide(update):
            return Fitted([update], (), ())
        return fit([update], [yjs.parse(update)], self._pairs, lambda: yjs.parse_state(self.doc.get_state()))

    def _remake(self, cut: Collection[Cut]) -> None:
        self._pairs.remove(cut)
        new = remade(self.doc, cut)
        if new is None:
            return
        before = None if self._traced is None else self.to_py()
        old, self.doc = self.doc, new
        move_all(dict(self._held), self.roots, old, new)
        _observe(self)
        if before is not None:
            self._traced = {}
            self._trace_new()
            self._differences += replaced(before, self.to_py())

    def to_py(self) -> dict[str, Any]:
        """All roots as plain values, by name."""
        return {name: to_py(open_root(self.doc, name, kind)) for name, kind in sorted(self.roots.items())}

    def _observed(self, event: pycrdt.TransactionEvent) -> None:
        """The engine calls this at the end of each transaction that changed something."""
        if self.doc.broken:
            return  # The edit that broke it raises, and everything after it.
        if self._arriving is None and is_wide(event.update):
            self._pairs.add(pairs_of(event.update))
        made = Transacted(event.update, [], []) if self._traced is None else self._told(event.update)
        if self._arriving is not None:
            self._arrived = made
            return
        edited = self._edited()
        if edited is None:
            raise closed()
        edited(made)

    def _told(self, update: bytes) -> Transacted:
        # The engine reports the roots in no particular order.
        differences = sorted(self._differences, key=lambda difference: str(difference.path[0]))
        self._differences = []
        # The engine does not report values that arrived and lost at once, so they are found in the update.
        return Transacted(update, differences, self._conflicts.add(self._arriving or update))


def _observe(content: Content) -> None:
    """Have the engine report each transaction to `content`.

    pycrdt's own `observe` is not used: its callback refers to the document and the engine to the callback, so that no
    document would ever be freed. The garbage collector does not see references held by the engine.
    """
    found, watched = weakref.ref(content.doc), weakref.WeakMethod(content._observed)

    def observe(event: pycrdt.TransactionEvent) -> None:
        observed, doc = watched(), found()
        try:
            if observed is None:
                raise closed()
            observed(event)
        except Exception as error:
            if doc is not None:
                doc._exceptions.append(error)  # It is raised at the end of the transaction.

    content.doc._subscriptions.append(content.doc._doc.observe(observe))


def _report(error: Exception) -> None:
    """Report an observer's error as asyncio does that of a callback: nobody called it."""
    told = "an observer of a document failed. What it was told of is in the document, and others are told."
    asyncio.get_running_loop().call_exception_handler({"message": told, "exception": error})


def _tracer(content: Content, shadow: DiffMirror) -> Callable[[Sequence[Any]], None]:
    found = weakref.ref(content)

    def trace(events: Sequence[Any]) -> None:
        watched = found()
        if watched is not None:
            watched._differences += shadow.follow(events)

    return trace


def closed() -> InvalidInput:
    """The error of an edit in a document that is closed."""
    return InvalidInput("this document is closed. The edit is not written; open the document again.")


class Beginnings:
    """The beginnings that one mirror knows."""

    def __init__(self, content: Content) -> None:
        self._content = content
        self._known: dict[bytes, dict[str, RootKind]] = {}

    def learn(self, told: Sequence[Beginning] | None) -> None:
        """Remember the beginnings that a node named."""
        self._known.update((each.digest, each.roots) for each in told or ())

    @property
    def shown(self) -> bytes:
        """The hash of the beginning that counts, of those known here; empty if none is known."""
        return min(self._known, default=b"")

    def is_lacked_by(self, state: DocumentState) -> bool:
        """Whether a node lacks the beginning that the mirror shows."""
        if state.beginnings is None or not self._known:
            return False
        return self.shown not in {each.digest for each in state.beginnings}

    def restored(self, space: str, document: str, *, authors: Mapping[int, str], generation: int) -> RestoreBeginning:
        """The request that gives a node the beginning that the mirror shows; there must be one."""
        digest = self.shown
        update, deletions = genesis.cut_out(self._content.doc, digest)
        author = authors.get(genesis.client_of(digest), "")
        return RestoreBeginning(space, document, digest, update, deletions, self._known[digest], author, generation)
