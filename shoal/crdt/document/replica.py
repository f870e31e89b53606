"""A document of the engine that only updates change.

Law: every update that a node applies to a document of the engine goes through `apply` or `feed`, so that none is asked to
split a surrogate pair (`shoal.crdt.document.surrogates`). Mirrors, which are edited in place, do the same for themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pycrdt

from shoal.crdt.document import yjs
from shoal.crdt.document.surrogates import Cut, Fitted, Pairs, fit, is_wide, rewritten
from shoal.crdt.document.yjs import StateVector

EMPTY_STATE = b"\x00"


class Replica:
    """The document, and the surrogate pairs in it. `doc` may be another one after each update."""

    __slots__ = ("doc", "pairs")

    def __init__(self) -> None:
        # It never edits, so that its client id never meets another's.
        self.doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=0)
        self.pairs = Pairs()

    def apply(self, updates: Sequence[bytes]) -> None:
        """Apply updates in causal order. All must have passed `shoal.crdt.document.yjs.parse`."""
        if not self.pairs and not any(map(is_wide, updates)):
            self._apply(updates)
        else:
            self.feed(fit(updates, [yjs.parse(update) for update in updates], self.pairs, self.state))

    def feed(self, fitted: Fitted) -> None:
        """Apply what was prepared for the document as it is."""
        if fitted.broken:
            self._rebuild(fitted.broken)
        self._apply(fitted.updates)
        if fitted.whole:
            self.pairs.add(fitted.whole)

    def state(self) -> StateVector:
        """The state vector. It is a transaction of the engine's, which looks at all that is deleted."""
        return yjs.parse_state(self.doc.get_state())

    def update_since(self, state: bytes) -> bytes:
        """The update that a replica with this state vector lacks. It holds all deletions."""
        return self.doc.get_update(self.pairs.backed(state))

    def snapshot(self) -> bytes:
        """The whole document as one update."""
        return self.doc.get_update(EMPTY_STATE)

    def _apply(self, updates: Sequence[bytes]) -> None:
        # Neither `merge_updates` nor one transaction: the cost of either grows with the square of what is in it.
        for update in updates:
            self.doc.apply_update(update)

    def _rebuild(self, broken: Collection[Cut]) -> None:
        snapshot = self.snapshot()
        wanted = rewritten(snapshot, broken)
        if wanted is not snapshot:  # Else they are deleted.
            self.doc = pycrdt.Doc(client_id=0)
            self.doc.apply_update(wanted)
        self.pairs.remove(broken)
