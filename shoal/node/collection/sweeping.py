"""What pruned checkpoints leave behind, and what of it is still needed.

Laws:
- A checkpoint that stays can be read: whatever its recipes stand on stays, records and chunks.
- A chunk that stays is named by a record that stays, so that a peer which lacks both gets it
  with that record: a pruned record that names one stays, marked, as *bones*.
- A chunk that a save names while this looks stays, whatever was seen before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from shoal.crdt.rows import Rows
from shoal.crdt.thread import channel, dag, tree
from shoal.node.thread.shapes import Reader

SLICE = 64  # Records that are looked at, or given up, before others get a turn.


def named(record: dag.Record) -> set[bytes]:
    """The chunks, and nodes over them, that came with a record."""
    return {digest for recipe in record.channels.values() for digest in recipe.added + recipe.nodes}


class Marking:
    """Finds what the checkpoints that stay need of `gone`, the pruned ones."""

    def __init__(self, gone: set[bytes]) -> None:
        self.gone = gone
        self.used: set[bytes] = set()  # Digests.
        self.bases: set[bytes] = set()  # Of `gone`: what recipes stand on.
        self._nodes: set[bytes] = set()  # That were looked into.

    def run(self, rows: Callable[[], Rows]) -> Iterator[None]:
        """Look at every record that stays, a slice at a time. `rows` gives them as they are now."""
        after: bytes | None = None
        while True:
            here = rows()
            reader, count = Reader(here), 0
            for key, _ in here.scan(dag.CHECKPOINT, after=after, limit=SLICE):
                after, count = key, count + 1
                if key[1:] not in self.gone:
                    self._look(reader, key[1:])
            if count < SLICE:
                return
            yield

    def protect(self, record: dag.Record) -> None:
        """A save came meanwhile."""
        self.used |= named(record)
        self.bases.update(recipe.base for recipe in record.channels.values() if recipe.base in self.gone)

    def is_bones(self, id: bytes, record: dag.Record) -> bool:
        """Whether a pruned record must stay."""
        return id in self.bases or not self.used.isdisjoint(named(record))

    def unused(self, record: dag.Record) -> list[bytes]:
        return sorted(named(record) - self.used)

    def _look(self, reader: Reader, id: bytes) -> None:
        record = reader.record(id)
        if record is None:
            return
        self.used |= named(record)
        for name, recipe in record.channels.items():
            if recipe.base in self.gone:
                self._look_below(reader, name, recipe)
            elif recipe.tops:
                self._walk(reader.rows, recipe.tops)

    def _look_below(self, reader: Reader, name: str, recipe: channel.Recipe) -> None:
        recipes = reader.recipes(name)
        outline = channel.outline_of(recipe, recipes)
        older: channel.Recipe | None = recipe
        while older is not None and older.base in self.gone:
            self.bases.add(older.base)
            older = recipes(older.base)
        if outline is not None:
            self._walk(reader.rows, outline.tops)

    def _walk(self, rows: Rows, tops: tree.Tops) -> None:
        for height, level in enumerate(tops):
            for digest in level:
                self._enter(rows, digest, height)

    def _enter(self, rows: Rows, digest: bytes, height: int) -> None:
        self.used.add(digest)
        if height == 0 or digest in self._nodes:
            return
        self._nodes.add(digest)
        for child in tree.children(dag.chunk(rows, digest) or b""):
            self._enter(rows, child, height - 1)


def freed(rows: Rows, marking: Marking, ids: list[bytes]) -> Iterator[bytes]:
    """The rows of pruned checkpoints that nothing needs."""
    for id in ids:
        found = dag.checkpoint(rows, id)
        if found is not None:
            yield from (dag.CHUNK + digest for digest in marking.unused(found.record))
            if marking.is_bones(id, found.record):
                continue
            yield dag.CHECKPOINT + id
        yield from [row for row, _ in rows.scan(dag.TWIN + id)]
        yield dag.PRUNED + id
