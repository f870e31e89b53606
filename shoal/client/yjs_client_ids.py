"""Yjs client ids of mirrors. A closed mirror leaves its id to a later one of the same store.

A Yjs document keeps an entry for each client that ever edited it, so a document that is opened often would grow with each
opening, and opening it would take longer each time.

Laws:
- A client id is one mirror's at a time. It is left by a mirror that was closed, after all its edits were acknowledged.
- It is used again for the same document, generation and author, if the next mirror is shown exactly the edits that the last
  one made. Two mirrors that edit on from one state under one id diverge for good, and nobody notices.
- It is used again over the connection over which it was left, and no other. The memory of a machine can be copied, and each
  copy has the ids; the connection goes on in one of them at most. An embedded store has its node in the same memory: a
  copy of both writes under the origin of the other, and peers refuse its operations.
- At most `DOCUMENT_CLIENT_IDS_MAX` ids are kept. Beyond that, those of the place at which none was left for longest go.
"""

from __future__ import annotations

from shoal.records import NamedTuple


class Place(NamedTuple):
    """The document that a mirror edits, and the author: a document names one author for each client."""

    space: str
    document: str
    author: str


class Ended(NamedTuple):
    """A client id, and where its edits end."""

    client_id: int
    clock: int  # Of its next edit.
    generation: int  # Of the document.
    connections: int  # As the session counted them.


class ClientIds:
    """The ids that were left to a store's mirrors."""

    def __init__(self) -> None:
        self._left: dict[Place, list[Ended]] = {}  # The place at which one was left last is the last.
        self._count = 0

    def take(self, place: Place, connections: int) -> Ended | None:
        """An id that was left over the connection of this number; None if there is none.

        Use it only if the document that is shown then ends so, too.
        """
        left = self._left.get(place)
        if left is None:
            return None
        if left[-1].connections != connections:
            self._drop(place)
            return None
        self._count -= 1
        last = left.pop()
        if not left:
            del self._left[place]
        return last

    def leave(self, place: Place, ended: Ended, *, ids_max: int) -> None:
        """Leave an id to the next mirror. Nobody edits under it any more."""
        self._left[place] = [*self._left.pop(place, ()), ended]  # At the end.
        self._count += 1
        while self._count > ids_max:
            self._drop(next(iter(self._left)))

    def _drop(self, place: Place) -> None:
        self._count -= len(self._left.pop(place))
