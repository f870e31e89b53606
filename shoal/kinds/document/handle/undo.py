"""Undo the edits made through one mirror, but no edits of others.

Laws:
- A step is one transaction. A transaction that came from the node is not a step: it is applied under an
  origin of its own, which the engine does not follow.
- A transaction that only uses roots for the first time is not a step.
- At most twice `steps_max` steps are kept; beyond that the oldest are forgotten. Content that a kept step
  deleted stays in memory until then.
- If the document is made anew (`shoal.kinds.document.handle.remaking`), all steps are forgotten.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pycrdt

from shoal.kinds.document.shared.doc import Doc

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
