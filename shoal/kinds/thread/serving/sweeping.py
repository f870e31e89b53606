"""Find the rows of pruned checkpoints that are still needed, and those that can be removed.

Laws:
- A kept checkpoint can be read: the records and chunks that its recipes build on are kept.
- A kept chunk is named by a kept record, so that a peer which lacks both gets it with that
  record: a pruned record is kept, marked, as *bones*, if it alone names one.
- The rows that are kept do not depend on when a node sweeps: a save that names the chunks of a pruned
  record again keeps the chunks, and not the record, which other nodes may have removed before.
- A chunk that a save names during the marking is kept, even if the marking has passed it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from shoal.crdt.rows import Rows
from shoal.kinds.thread.serving.shapes import Reader
from shoal.kinds.thread.state import channel, dag, pruning, tree

SLICE = 64  # Records that are read, or removed, before other tasks get a turn.


def named(record: dag.Record) -> set[bytes]:
    """The digests of the chunks, and of the tree nodes over them, that came with a record."""
    return {digest for recipe in record.channels.values() for digest in recipe.added + recipe.nodes}


class Marking:
    """Finds the parts of `gone`, the pruned checkpoints, that the kept ones need."""

    def __init__(self, gone: set[bytes]) -> None:
        self.gone = gone
        self.used: set[bytes] = set()  # Digests.
        self._carried: set[bytes] = set()  # Those that a kept record names.
        self.bases: set[bytes] = set()  # Those of `gone` that recipes build on.
        self._nodes: set[bytes] = set()  # Tree nodes that were read.

    def run(self, rows: Callable[[], Rows]) -> Iterator[None]:
        """Read every kept record, a slice at a time. `rows` gives the rows as they are now."""
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
        """Keep what the record of a concurrent save needs."""
        self._carry(record)
        self.bases.update(recipe.base for recipe in record.channels.values() if recipe.base in self.gone)

    def is_bones(self, id: bytes, record: dag.Record) -> bool:
        """Whether a pruned record must be kept."""
        return id in self.bases or not self.used.isdisjoint(named(record) - self._carried)

    def unused(self, record: dag.Record) -> list[bytes]:
        """The digests that a record names and no kept checkpoint needs."""
        return sorted(named(record) - self.used)

    def _look(self, reader: Reader, id: bytes) -> None:
        record = reader.record(id)
        if record is None:
            return
        self._carry(record)
        for name, recipe in record.channels.items():
            if recipe.base in self.gone:
                self._look_below(reader, name, recipe)
            elif recipe.tops:
                self._walk(reader.rows, recipe.tops)

    def _carry(self, record: dag.Record) -> None:
        digests = named(record)
        self.used |= digests
        self._carried |= digests

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


def freed(rows: Rows, marking: Marking, ids: list[bytes]) -> Iterator[tuple[bytes, bytes | None]]:
    """The rows of these pruned checkpoints that nothing needs, and what takes their place; None: nothing."""
    for id in ids:
        found = dag.checkpoint(rows, id)
        if found is not None:
            yield from ((dag.CHUNK + digest, None) for digest in marking.unused(found.record))
            if marking.is_bones(id, found.record):
                continue
            yield dag.CHECKPOINT + id, None
            yield dag.when_row(found.record.branch, found.wall_ms, id), None
        yield from [(row, None) for row, _ in rows.scan(dag.TWIN + id)]
        yield from pruning.swept_rows(rows, id).items()
