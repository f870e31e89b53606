"""Inspection of checkpoints: what they changed, and what their authors could see.

Law: an author could see the events of its own thread that come before its checkpoint in the
order of their times. Of other objects it could see what it recorded, and what the authors
of the checkpoint's ancestors recorded.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from shoal.config import Config
from shoal.crdt.rows import Rows
from shoal.kinds.journal.serving.journals import shown_event
from shoal.kinds.journal.state import journal
from shoal.kinds.thread.serving.checkpoints import Checkpoints, found_checkpoint, shown_hash
from shoal.kinds.thread.serving.shapes import Reader, appended
from shoal.kinds.thread.state import dag
from shoal.node.handler import Checks, Readers, View, Writers
from shoal.node.naming import checkpoint_named
from shoal.protocol import requests
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.requests import Explain, Growth, Load, ReadDelta

ANCESTORS_READ_MAX = 64  # For what earlier authors recorded; handles record all of it again more often than that.


class Inspection:
    """The handler of `Explain` and `ReadDelta`."""

    def __init__(self, config: Config, checkpoints: Checkpoints) -> None:
        self._config = config
        self._checkpoints = checkpoints
        self.checks: Checks = {}
        self.writers: Writers = {}
        self.readers: Readers = {Explain: self._explain, ReadDelta: self._delta}

    def _delta(self, view: View, request: ReadDelta) -> requests.Delta:
        """Read a checkpoint's channels that differ from its first parent's; of lists that only grew, the new elements.

        Raises:
            NotFound: there is no such checkpoint, or its first parent was pruned.
            StoreCorrupt: a chunk is missing or does not match its hash.
        """
        rows = view.rows
        found = found_checkpoint(rows, request.thread, checkpoint_named(rows, request.thread, request.checkpoint))
        parents = found.record.parents
        parent = found_checkpoint(rows, request.thread, parents[0]) if parents else None
        reader, lists, names = Reader(rows), dict[str, Growth](), list[str]()
        for name, recipe in found.record.channels.items():
            old = None if parent is None else parent.record.channels.get(name)
            if old is not None and shown_hash(old) == shown_hash(recipe):
                continue
            more = None
            if parent is not None and old is not None and parent.record.schema == found.record.schema:
                more = appended(reader, parent, found, name)
            if more is None:
                names.append(name)
            else:
                lists[name] = Growth(*more)
        load = Load(request.space, request.thread, found.id.hex())
        return requests.Delta(self._checkpoints.shown(rows, load, found, names), lists)

    def _explain(self, view: View, request: Explain) -> requests.Explained:
        """The context that the author of a checkpoint could see: earlier checkpoints, events, its setting and bookmark.

        Raises:
            NotFound: there is no such checkpoint.
        """
        rows = view.rows
        found = found_checkpoint(rows, request.thread, checkpoint_named(rows, request.thread, request.checkpoint))
        limit = min(max(1, request.limit), self._config.page_items_max)
        line = list(islice(dag.ancestry(rows, found.id), max(ANCESTORS_READ_MAX, limit + 1)))
        said = line[:ANCESTORS_READ_MAX]
        seen = Bookmark()
        for older in said:
            seen.join(Bookmark.unpack(older.record.seen))
        shown = requests.History(request.space, request.thread, found.record.branch)
        return requests.Explained(
            checkpoint=self._checkpoints.shown(rows, shown, found, ()),
            setting=next((older.record.setting for older in said if older.record.setting), b""),
            seen=seen.pack() if len(seen) else b"",
            earlier=[self._checkpoints.shown(rows, shown, older, ()) for older in line[1 : limit + 1]],
            events=list(_events_before(rows, found.hlc, limit, self._config.page_bytes_max)),
        )


def _events_before(rows: Rows, hlc: int, limit: int, bytes_max: int) -> Iterator[requests.Event]:
    size = 0
    for event in journal.before(rows, hlc, limit):
        yield shown_event(event, b"")
        size += len(event.payload)
        if size > bytes_max:
            return
