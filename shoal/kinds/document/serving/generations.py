"""The generation that an edit of a document belongs to, and the Yjs clients that may no longer edit.

Laws:
- An edit that names its generation is written to that one or not at all: a client
  that was away does not restore deleted content.
- A standard Yjs client names none. The clients that edited an ended generation are
  known by their ids, the latest `document_dead_clients_max` of them, and rejected.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shoal.config import Config
from shoal.crdt.deletion import Delete
from shoal.errors import GenerationEnded, SessionBehind
from shoal.kinds.document.state import yjs
from shoal.node.collection.generations import Generations
from shoal.node.target import Target
from shoal.node.transaction import Transaction
from shoal.protocol.requests import ANY


class DocumentGenerations:
    """The generations of documents, with the check that an edit belongs to the current one."""

    def __init__(self, config: Config, generations: Generations) -> None:
        self._config = config
        self._generations = generations

    def number(self, transaction: Transaction, target: Target) -> int:
        """The number of the document's current generation."""
        return self._generations.current(transaction, target).number

    def ending(self, transaction: Transaction, target: Target, clients: Iterable[int]) -> Delete:
        """The deletion of the current generation, which these clients edited."""
        last = self._generations.last(transaction, target)
        dead = () if last is None else last.clients
        named = list(dict.fromkeys([*dead, *clients]))[-self._config.document_dead_clients_max :]
        return Delete(self.number(transaction, target), named)

    def check(self, transaction: Transaction, target: Target, generation: int, updates: Sequence[bytes]) -> None:
        """Check that updates belong to the current generation. `generation` is the client's, or `ANY`.

        Raises:
            GenerationEnded: that generation has ended, or a client that edited an ended one made an update.
            SessionBehind: that generation has not arrived here yet.
            InvalidValue: an update is not a Yjs update.
        """
        current = self.number(transaction, target)
        if generation not in (ANY, current):
            raise _ended(target, current) if generation < current else _behind(target)
        if not current or not updates:
            return
        last = self._generations.last(transaction, target)
        assert last is not None
        dead = frozenset(last.clients)
        for update in updates:
            if not dead.isdisjoint(yjs.parse(update).structs):
                raise _ended(target, current)


def _ended(target: Target, current: int) -> GenerationEnded:
    return GenerationEnded(
        f"document {target.name!r} of space {target.space!r} was deleted since this client opened it. Nothing was written. "
        "The client keeps its edits; open the document again to begin from the current content.",
        generation=current,
    )


def _behind(target: Target) -> SessionBehind:
    return SessionBehind(
        f"this node does not know yet that document {target.name!r} was deleted. Nothing was written. "
        "Try again soon, or on another node."
    )
