"""Verify stored checkpoints, page by page along first parents.

Laws:
- Nothing cached is trusted: every chunk is read and hashed, the hash and size of every value are computed
  from its chunks, and every id from the record.
- One page reads each chunk and each record once, however many of its checkpoints share them. So verifying a
  history costs what is stored, not the sum of the sizes of all states.
- Other requests get their turn between two checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import sha256

from shoal.config import Config
from shoal.crdt.rows import Rows
from shoal.errors import NotFound, StoreCorrupt
from shoal.kinds.thread.serving.shapes import Reader, corrupt
from shoal.kinds.thread.state import channel, dag, tree
from shoal.node.handler import Checks, Readers, Scan, Scans, View, Writers
from shoal.node.naming import checkpoint_named, unhex
from shoal.node.turns import Steps, Stride
from shoal.protocol import requests
from shoal.protocol.requests import Damage, VerifyCheckpoints
from shoal.records import NamedTuple

_STEP_CHECKPOINTS = 16  # Verified in one step; a checkpoint that shares its chunks with the one before takes about 0.1 ms.
_STEP_BYTES = 64 * 1024  # Of chunks read in one step; the last chunk may exceed it.
_RECIPE_BYTES = 200  # What a channel's recipe takes in memory.


class Verifying:
    """The handler of `VerifyCheckpoints`."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.checks: Checks = {}
        self.writers: Writers = {}
        self.readers: Readers = {}
        self.scans: Scans = {VerifyCheckpoints: self._verify}

    def _verify(self, view: Callable[[], View], request: VerifyCheckpoints) -> Scan:
        """Verify one checkpoint, or a page of a branch's history; damage is listed, not raised.

        Raises:
            NotFound: there is no such checkpoint or branch.
        """
        rows = view().rows
        id: bytes | None = _first(rows, request)
        limit = 1 if request.checkpoint is not None else min(max(1, request.limit), self._config.page_items_max)
        page = _Page(rows)
        checked = 0
        bytes_max = self._config.page_bytes_max
        while id is not None and checked < limit and page.bytes <= bytes_max and len(page.damage) <= limit:
            checked += 1
            known, pauses = len(page.damage), page.pauses
            found = yield from page.verify(id)
            if checked == 1:
                bytes_max += page.bytes  # The first one reads all that it shares with the others.
            page.rows = view().rows
            if page.pauses > pauses and page.rows.get(dag.CHECKPOINT + id) is None:
                del page.damage[known:]  # It was pruned meanwhile, or its thread deleted, and its chunks with it.
            parents = [] if found is None else found.record.parents
            # A parent that is not stored was pruned; a head that is not stored is missing.
            id = parents[0] if parents and page.rows.get(dag.CHECKPOINT + parents[0]) is not None else None
        going_on = "" if id is None or request.checkpoint is not None else id.hex()
        return requests.Verified(checked, page.damage, going_on)


def _first(rows: Rows, request: VerifyCheckpoints) -> bytes:
    if request.checkpoint is not None:
        id = checkpoint_named(rows, request.thread, request.checkpoint)
        if rows.get(dag.CHECKPOINT + id) is None:
            raise NotFound(f"thread {request.thread!r} has no checkpoint {request.checkpoint}.")
        return id
    if request.start:
        return unhex(request.start)
    heads = dag.heads(rows, request.branch)
    if not heads:
        raise NotFound(f"thread {request.thread!r} has no branch {request.branch!r}.")
    return heads[0].id


class _Part(NamedTuple):
    """The chunks below some digests."""

    bytes: int
    lost: int = 0  # Chunks and nodes that are missing or damaged.
    first: str = ""  # The first of them, and what is wrong with it.


class _Page:
    """Verifies checkpoints of one thread, in steps. `rows` may be replaced between two of them."""

    def __init__(self, rows: Rows) -> None:
        self.damage: list[Damage] = []
        self.pauses = 0  # Between steps.
        self._stride = Stride(_STEP_CHECKPOINTS, _STEP_BYTES)
        self.bytes = 0  # Of chunks and recipes that were read.
        self._reader = Reader(rows)
        self._parts: dict[tuple[bytes, int], _Part] = {}  # By digest and height in its tree.

    @property
    def rows(self) -> Rows:
        return self._reader.rows

    @rows.setter
    def rows(self, rows: Rows) -> None:
        self._reader.rows = rows

    def _pause(self) -> Steps[None]:
        self.pauses += 1
        yield

    def verify(self, id: bytes) -> Steps[dag.Checkpoint | None]:
        """Returns None if there is no such checkpoint that can be decoded: its parents are not known."""
        try:
            found = dag.checkpoint(self.rows, id)
        except StoreCorrupt as error:
            self.damage.append(Damage(id.hex(), "", error.message))
            return None
        if found is None:
            self.damage.append(Damage(id.hex(), "", "it is missing"))
            return None
        if dag.identify(found.record) != id:
            self.damage.append(Damage(id.hex(), "", "its id does not match its content"))
        self.bytes += _RECIPE_BYTES * len(found.record.channels)
        for name, recipe in found.record.channels.items():
            try:
                wrong = yield from self._wrong(name, recipe)
            except StoreCorrupt as error:  # A checkpoint that it is described against.
                self.damage.append(Damage(id.hex(), name, error.message))
            else:
                if wrong:
                    self.damage.append(Damage(id.hex(), name, corrupt(id, name, wrong).message))
            if self._stride.is_over(_RECIPE_BYTES, rows=0):
                yield from self._pause()
        if self._stride.is_over(0):
            yield from self._pause()
        return found

    def _wrong(self, name: str, recipe: channel.Recipe) -> Steps[str]:
        """The fault in a channel's value; empty if there is none."""
        outline = channel.outline_of(recipe, self._reader.recipes(name))
        if outline is None:
            return "a checkpoint that it builds on is missing"
        if channel.hash_of(recipe.header, outline.tops, outline.tail) != recipe.hash:
            return "its hash does not match"
        part = yield from self._sum(
            (digest, height) for height in range(len(outline.tops) - 1, -1, -1) for digest in outline.tops[height]
        )
        if part.lost:
            return part.first + (f", and {part.lost - 1} more" if part.lost > 1 else "")
        if len(recipe.header) + part.bytes + len(outline.tail) != recipe.size:
            return "its size does not match"
        return ""

    def _sum(self, digests: Iterable[tuple[bytes, int]]) -> Steps[_Part]:
        size = lost = 0
        first = ""
        for digest, height in digests:
            part = self._parts.get((digest, height))
            if part is None:
                part = self._parts[digest, height] = yield from self._read(digest, height)
            size, lost, first = size + part.bytes, lost + part.lost, first or part.first
        return _Part(size, lost, first)

    def _read(self, digest: bytes, height: int) -> Steps[_Part]:
        """A chunk, or a node and all that is below it."""
        try:
            stored = dag.chunk(self.rows, digest)
        except StoreCorrupt:  # The block that holds it is damaged.
            return _Part(0, 1, f"chunk {digest.hex()} is unreadable")
        if stored is None or sha256(stored).digest() != digest:
            return _Part(0, 1, f"chunk {digest.hex()} is {'missing' if stored is None else 'damaged'}")
        self.bytes += len(stored)
        if self._stride.is_over(len(stored), rows=0):
            yield from self._pause()
        if not height:
            return _Part(len(stored))
        return (yield from self._sum((child, height - 1) for child in tree.children(stored)))
