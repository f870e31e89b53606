"""Which generation of a document an edit belongs to, and which Yjs clients may no longer edit.

Laws:
- An edit that names its generation is written to that one or not at all: what was
  deleted is not restored by a client that was away.
- A standard Yjs client names none. Those that edited a generation that was ended are
  known by their ids, the latest `document_dead_clients_max` of them, and refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shoal.config import Config
from shoal.crdt.deletion import Delete
from shoal.crdt.document import yjs
from shoal.errors import GenerationEnded, SessionBehind
from shoal.node.collection.generations import Generations
from shoal.node.target import Target
from shoal.node.transaction import Transaction
from shoal.protocol.requests import ANY


class DocumentGenerations:
    def __init__(self, config: Config, generations: Generations) -> None:
        self._config = config
        self._generations = generations

    def number(self, transaction: Transaction, target: Target) -> int:
        return self._generations.current(transaction, target).number

    def ending(self, transaction: Transaction, target: Target, clients: Iterable[int]) -> Delete:
        """The deletion of the current generation, which these clients edited."""
        last = self._generations.last(transaction, target)
        dead = () if last is None else last.clients
        named = list(dict.fromkeys([*dead, *clients]))[-self._config.document_dead_clients_max :]
        return Delete(self.number(transaction, target), named)

    def check(self, transaction: Transaction, target: Target, generation: int, updates: Sequence[bytes]) -> None:
        """
        Raises:
            GenerationEnded: it was ended, or a client that edited one before the current one made an update.
            SessionBehind: this node has not heard that it was begun.
            InvalidValue: an update is none.
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
        "What was edited stays in the client; open the document again to begin from what there is now.",
        generation=current,
    )


def _behind(target: Target) -> SessionBehind:
    return SessionBehind(
        f"this node has not heard yet that document {target.name!r} was deleted. Nothing was written; "
        "try again soon, or at another node."
    )
