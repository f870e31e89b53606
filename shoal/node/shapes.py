"""The values of checkpoints: drafted against what they build on, and put together again.

Law: what is cached is what is stored. A value is served only if every hash on the
way to it holds.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from hashlib import sha256
from itertools import accumulate
from typing import NamedTuple

from shoal.crdt import channel, lineage
from shoal.crdt.channel import Recipe, Shape
from shoal.crdt.rows import Rows
from shoal.errors import InvalidInput, StoreCorrupt
from shoal.protocol.requests import Save


class Spot(NamedTuple):
    """A checkpoint of a thread. Its id alone is no key: equal checkpoints of two threads have their own recipes."""

    space: str
    thread: str
    id: bytes


class ShapeCache:
    """The last serialised form of live threads; oldest dropped first, bounded by bytes.

    One memory comparison with it finds what a save shares with its parent.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._entries: OrderedDict[Spot, tuple[dict[str, Shape], int]] = OrderedDict()

    def get(self, spot: Spot) -> dict[str, Shape] | None:
        found = self._entries.get(spot)
        if found is None:
            return None
        self._entries.move_to_end(spot)
        return found[0]

    def put(self, spot: Spot, shapes: dict[str, Shape], *, replacing: Spot | None = None) -> None:
        for stale in (spot, replacing):
            if stale is not None and (found := self._entries.pop(stale, None)) is not None:
                self._bytes -= found[1]
        size = 0
        for shape in shapes.values():
            # A digest and its end cost about 100 bytes as Python objects; a shape about 300.
            size += len(shape.body) + 100 * len(shape.digests) + 300
        self._entries[spot] = shapes, size
        self._bytes += size
        while self._bytes > self._bytes_max and self._entries:
            self._bytes -= self._entries.popitem(last=False)[1][1]


class Drafted(NamedTuple):
    """A state, described against its parent's."""

    recipes: dict[str, Recipe]
    chunks: dict[bytes, bytes]  # New ones, by digest.
    shapes: dict[str, Shape]


def draft(rows: Rows, request: Save, parent: bytes | None, base: dict[str, Shape] | None) -> Drafted:
    """Describe the state that a request saves on `parent`, whose shapes are `base`, if they are at hand."""
    if request.delta or request.appended or request.removed:
        raise InvalidInput("this node does not take changes of a state yet. Nothing was written. Save the whole state.")
    drafted = Drafted({}, {}, {})
    for name, packed in request.channels.items():
        made = channel.draft(packed, base.get(name) if base is not None else None, parent or b"")
        drafted.recipes[name], drafted.shapes[name] = made.recipe, made.shape
        # What a live thread adds is new but by chance; only a cold one may be saying it all again.
        if made.chunks:
            drafted.chunks.update(made.chunks if base is not None else _missing(rows, made.chunks))
    return drafted


def assemble(rows: Rows, found: lineage.Checkpoint) -> dict[str, Shape]:
    """Put a checkpoint's values together from its chunks, each checked against its hash.

    Raises:
        StoreCorrupt: a chunk or a checkpoint it is described against is missing, or a hash does not hold.
    """
    records: dict[bytes, Mapping[str, Recipe]] = {}

    def of_base(name: str, id: bytes) -> Recipe | None:
        if id not in records:
            older = lineage.checkpoint(rows, id)
            records[id] = {} if older is None else older.record.channels
        return records[id].get(name)

    return {name: _shape(rows, found, name, partial(of_base, name)) for name in found.record.channels}


def _shape(rows: Rows, found: lineage.Checkpoint, name: str, of_base: Callable[[bytes], Recipe | None]) -> Shape:
    recipe = found.record.channels[name]
    digests = channel.digests_of(recipe, of_base)
    if digests is None:
        raise _corrupt(found, name, "a checkpoint that it builds on is missing")
    pieces = [_chunk(rows, found, name, digest) for digest in digests]
    body = b"".join(pieces) if pieces else channel.inline_of(recipe, of_base)
    if body is None:
        raise _corrupt(found, name, "the checkpoint that has its value is missing")
    ends = list(accumulate(map(len, pieces)))
    if channel.hash_of(recipe.header, body, digests) != recipe.hash:
        raise _corrupt(found, name, "its hash does not hold")
    # A recipe that only points at another checkpoint's adds nothing to the chain.
    points = bool(recipe.base) and not recipe.chunks
    home, depth = (recipe.base, recipe.depth - 1) if points else (b"", recipe.depth)
    return Shape(recipe.hash, recipe.header, body, ends, digests, home, depth)


def _chunk(rows: Rows, found: lineage.Checkpoint, name: str, digest: bytes) -> bytes:
    piece = lineage.chunk(rows, digest)
    if piece is None or sha256(piece).digest() != digest:
        raise _corrupt(found, name, f"chunk {digest.hex()} is {'missing' if piece is None else 'damaged'}")
    return piece


def _missing(rows: Rows, chunks: dict[bytes, bytes]) -> dict[bytes, bytes]:
    return {digest: piece for digest, piece in chunks.items() if lineage.chunk(rows, digest) is None}


def _corrupt(found: lineage.Checkpoint, name: str, why: str) -> StoreCorrupt:
    return StoreCorrupt(
        f"channel {name!r} of checkpoint {found.id.hex()} cannot be read: {why}. "
        "Other checkpoints are not affected; run `shoal verify` to list all damage."
    )
