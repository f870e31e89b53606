"""Moments of a document, and its content at a moment of the past.

Law: a moment is a version vector, so that it names the same updates on every node. The content at
a moment depends only on these updates, not on later ones, nor on the order in which they arrived.
"""

from __future__ import annotations

import msgspec

from shoal.config import Config
from shoal.crdt.dot import Dot, VersionVector
from shoal.errors import HistoryCompacted, InvalidValue, SessionBehind, TooLarge
from shoal.kinds.document.serving.compacting import check_whole
from shoal.kinds.document.serving.generations import DocumentGenerations
from shoal.kinds.document.state import compaction, document
from shoal.kinds.document.state.live import LiveDocument
from shoal.node.handler import Checks, Readers, View, Writers
from shoal.protocol import requests

_HLC_BYTES = 8  # At the beginning of a position.


class Snapshots:
    """The handler of `ReadMoment` and `ReadDocumentAt`."""

    def __init__(self, config: Config, generations: DocumentGenerations) -> None:
        self._config = config
        self._generations = generations
        self.checks: Checks = {}
        self.writers: Writers = {}
        self.readers: Readers = {requests.ReadMoment: self._moment, requests.ReadDocumentAt: self._at}

    def _moment(self, view: View, _request: requests.ReadMoment) -> requests.Moment:
        return requests.Moment(self._generations.number(view.transaction, view.target), view.vector.pack())

    def _at(self, view: View, request: requests.ReadDocumentAt) -> requests.DocumentJson:
        """The content at a moment, built from the stored updates.

        Raises:
            InvalidValue: it is not a moment.
            GenerationEnded: the document was deleted since.
            SessionBehind: this node does not hold everything that existed then.
            CatchingUp: this node lacks a part of the document.
            HistoryCompacted: a compaction has merged updates that are later than the moment.
            TooLarge: more than `document_history_updates_max` updates lie before it.
        """
        self._generations.check(view.transaction, view.target, request.generation, [])
        try:
            then = VersionVector.unpack(request.vector)
        except ValueError as error:
            raise InvalidValue(
                f"this is not a moment of a document ({error}). Use the value that `snapshot` returned."
            ) from None
        if not view.vector.accepts(then):
            raise SessionBehind(
                "this node does not yet have everything that existed at that moment. Try again soon, or on another node."
            )
        check_whole(view.rows, view.target)
        covered = compaction.covered(view.rows)
        named = covered.vector.items()
        if not (covered.floor.is_reached(then) and all(then.reaches(Dot(*entry), None, view.vector) for entry in named)):
            raise HistoryCompacted(
                f"the past of document {view.target.name!r} was compacted, and that moment is before the compaction. "
                "Nothing was written. Read the current document, or take snapshots more often."
            )

        def known(position: bytes) -> bool:
            return then.reaches(document.dot_of(position), int.from_bytes(position[:_HLC_BYTES], "big"), view.vector)

        updates = [each.merged for each in compaction.standing(view.rows)]
        for position, update in compaction.uncovered(view.rows, covered):
            if known(position):
                updates.append(update)
            if len(updates) > self._config.document_history_updates_max:
                raise TooLarge(
                    f"more than {self._config.document_history_updates_max} updates lie before that moment "
                    "(document_history_updates_max), too many to build the document from. Read the current document."
                )
        updates.append(document.withdrawn(view.rows, known=known))
        roots = document.roots(view.rows)
        live = LiveDocument(
            bytes_max=self._config.document_bytes_max, roots_max=self._config.roots_max, updates=updates, roots=roots
        )
        declared = {name: document.declared_by(view.rows, name) for name in roots}
        shown = {name for name, dots in declared.items() if any(then.reaches(dot, None, view.vector) for dot in dots)}
        return requests.DocumentJson(msgspec.json.encode({k: v for k, v in live.to_json().items() if k in shown}))
