"""The values of checkpoints: drafted against the parent's values, and assembled again.

Law: the cache equals the stored state. A value is served only if it matches every
hash on the way to it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from hashlib import sha256

from msgspec import Struct
from msgspec.structs import replace

from shoal import values
from shoal.cluster.operation import partition_of
from shoal.crdt.rows import Rows
from shoal.errors import InvalidInput, StoreCorrupt
from shoal.kinds.thread.state import channel, dag, pruning
from shoal.kinds.thread.state import chunking as tree
from shoal.kinds.thread.state.channel import NO_PIECES, SMALL_BYTES, Pieces, Recipe, Shape
from shoal.node.handler import Memory, Target
from shoal.node.transaction import Transaction
from shoal.protocol.requests import Save
from shoal.records import NamedTuple

_ENTRY_BYTES = 600  # The cost of an entry of the cache beside its shapes.

_PLACE = Recipe(b"", 0, b"")  # Holds the place of a changed channel until its recipe is known.

Shapes = Mapping[str, Shape]  # All channels of a checkpoint by name, each as far as it is known.


class Spot(Struct, frozen=True, gc=False):
    """Names a checkpoint in the cache. An id alone is no key: equal checkpoints of two threads have their own recipes."""

    space: str
    thread: str
    id: bytes


class ShapeCache(Memory):
    """The serialised values of recently used checkpoints, bounded by bytes; the least recently used is dropped first.

    A few comparisons in memory find the parts that a save shares with its parent.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._entries: OrderedDict[Spot, tuple[Shapes, int, bool]] = OrderedDict()

    def get(self, spot: Spot) -> Shapes | None:
        """The shapes of a checkpoint, if they are cached."""
        found = self._entries.get(spot)
        if found is None:
            return None
        self._entries.move_to_end(spot)
        return found[0]

    def is_open(self, spot: Spot) -> bool:
        """Whether a checkpoint is cached, and is known to have no secret fields."""
        found = self._entries.get(spot)
        return found is not None and not found[2]

    def put(self, spot: Spot, shapes: Shapes, *, has_secrets: bool, replacing: Spot | None = None) -> None:
        """Cache the shapes of a checkpoint, and drop those of `replacing`, its parent. Others may be dropped for room.

        `has_secrets`: whether fields of it are secret.
        """
        for stale in (spot, replacing):
            if stale is not None and stale in self._entries:
                self._drop(stale)
        cost = _ENTRY_BYTES
        for shape in shapes.values():
            cost += SMALL_BYTES + shape.size if shape.pieces is NO_PIECES else shape.cost_bytes
        self._entries[spot] = shapes, cost, has_secrets
        self._bytes += cost
        while self._bytes > self._bytes_max and self._entries:
            self._bytes -= self._entries.popitem(last=False)[1][1]

    def ended(self, transaction: Transaction, target: Target) -> None:
        """Drop all checkpoints of a thread that is deleted."""
        self._forget(target.space, target.name)
        self.replaced(transaction, target)

    def replaced(self, transaction: Transaction, target: Target) -> None:
        """Drop all checkpoints of a thread once its rows are replaced."""
        transaction.when_written(lambda: self._forget(target.space, target.name))

    def _forget(self, space: str, thread: str) -> None:
        for spot in [spot for spot in self._entries if spot.thread == thread and spot.space == space]:
            self._drop(spot)

    def forget_partition(self, number: int) -> None:
        """Drop all checkpoints of a partition, because its rows were replaced."""
        for spot in [spot for spot in self._entries if partition_of(spot.space, spot.thread) == number]:
            self._drop(spot)

    def drop(self, spots: Iterable[Spot]) -> None:
        """Drop these checkpoints, because they were pruned."""
        for spot in spots:
            self._drop(spot)

    def _drop(self, spot: Spot) -> None:
        if (found := self._entries.pop(spot, None)) is not None:
            self._bytes -= found[1]


class Drafted(NamedTuple):
    """A state, described as changes of its parent's."""

    recipes: dict[str, Recipe]
    chunks: dict[bytes, bytes]  # New chunks, and new tree nodes over them, by digest.
    shapes: dict[str, Shape]


def draft(rows: Rows, request: Save, parent: bytes | None, cached: Shapes | None) -> Drafted:
    """Describe the state that a request saves on `parent`, whose shapes are `cached`, or None if they must be read.

    Raises:
        InvalidInput: it appends to a channel that is not a list, or removes a channel that does not exist.
        InvalidValue, TooLarge: a channel is not a valid value.
        StoreCorrupt: a list that it appends to cannot be read.
    """
    reader = Reader(rows)
    base = cached if cached is not None else {} if parent is None else reader.sketches(parent)
    base_id = parent or b""
    drafted = Drafted({}, {}, {})
    if request.delta:
        _draft_kept(drafted, request, base, base_id)
    for name, packed in request.channels.items():
        shape = base.get(name)
        if shape is not None and shape.outline is None:
            shape = reader.outlined(base_id, name, shape)
        made = _drafted(packed, shape, base_id)
        drafted.recipes[name], drafted.shapes[name] = made.recipe, made.shape
        if made.rows:
            _take(drafted, rows, made, shape)
    for name, elements in request.appended.items():
        shape = base.get(name)
        if shape is not None and shape.outline is None:
            shape = reader.outlined(base_id, name, shape)
            if shape is None:
                raise corrupt(base_id, name, "a checkpoint that it builds on is missing or damaged", reader.records())
        extended = channel.draft(elements) if shape is None else channel.extend(elements, shape, base_id)
        if extended is None:
            raise InvalidInput(
                f"channel {name!r} is not a list, so nothing can be appended to it. Nothing was written. Update the "
                "whole channel."
            )
        drafted.recipes[name], drafted.shapes[name] = extended.recipe, extended.shape
        if extended.rows:
            _take(drafted, rows, extended, shape)
    return drafted


def _drafted(packed: bytes, shape: Shape | None, base_id: bytes) -> channel.Draft:
    """A channel's draft, after the new parts of its value were checked."""
    start = channel.header_bytes(packed)
    more = None if shape is None else channel.beyond(packed, shape, start)
    if shape is None or more is None:
        values.check(packed)
        if len(packed) - start < tree.CHUNK_BYTES_MIN:
            return channel.draft_small(packed, start, shape, base_id)
        return channel.draft(packed, shape, base_id, start=start)
    header = packed[:start]
    if more or header != shape.header:
        values.check(channel.appended(header, more, shape) or packed)
    return channel.grow(header, more, shape, base_id)


def _draft_kept(drafted: Drafted, request: Save, base: Shapes, parent: bytes) -> None:
    """Draft the channels that a change leaves as they are, and keep the places of those that it changes."""
    for name in request.removed:
        if name not in base:
            raise InvalidInput(
                f"there is no channel {name!r} to remove; the channels are {', '.join(map(repr, base)) or 'none'}. "
                "Nothing was written."
            )
    for name, shape in base.items():
        if name in request.channels or name in request.appended:
            drafted.recipes[name], drafted.shapes[name] = _PLACE, shape
        elif name not in request.removed:
            made = channel.point(shape, parent)
            drafted.recipes[name], drafted.shapes[name] = made.recipe, made.shape


def _take(drafted: Drafted, rows: Rows, made: channel.Draft, base: Shape | None) -> None:
    # With the parent's pieces at hand, the chunks are almost certainly new. Without them, they may all be stored already.
    live = base is not None and base.pieces is not None
    drafted.chunks.update(made.rows if live else _missing(rows, made.rows))


def sketches(record: dag.Record) -> dict[str, Shape]:
    """The shapes of a record's channels, without reading other rows; of a damaged recipe only the hash."""
    drawn = {name: channel.sketch(recipe) for name, recipe in record.channels.items()}
    for name, shape in drawn.items():
        if shape.outline is not None and channel.hash_of(shape.header, shape.outline.tops, shape.outline.tail) != shape.hash:
            drawn[name] = replace(shape, outline=None, pieces=None)
    return drawn


def completed(rows: Rows, found: dag.Checkpoint, shapes: Shapes | None, names: Collection[str]) -> Shapes:
    """A checkpoint's shapes, those of the channels `names` complete with outline and pieces.

    They are assembled from their chunks, each checked against its hash. `shapes` are the known ones, or None.

    Raises:
        StoreCorrupt: a chunk, or a checkpoint that a recipe builds on, is missing, or a hash does not match.
    """
    if shapes is not None and all(shapes[name].pieces is not None for name in names):
        return shapes
    reader = Reader(rows)
    known = sketches(found.record) if shapes is None else dict(shapes)
    for name in names:
        if shapes is None or known[name].pieces is None:
            known[name] = _assembled(reader, found, name, known[name])
    return known


def appended(reader: Reader, base: dag.Checkpoint, found: dag.Checkpoint, name: str) -> tuple[int, bytes] | None:
    """The elements that a list holds in `found` after its elements in `base`: see `channel.continued`.

    Raises:
        StoreCorrupt: a chunk is missing or does not match its hash.
    """
    sides: list[tuple[bytes, channel.Outline]] = []
    for checkpoint in (found, base):
        recipe = checkpoint.record.channels[name]
        outline = channel.outline_of(recipe, reader.recipes(name))
        if outline is None or channel.hash_of(recipe.header, outline.tops, outline.tail) != recipe.hash:
            return None
        sides.append((recipe.header, outline))
    return channel.continued(*sides[0], *sides[1], lambda digest: _chunks(reader.rows, found, name, [digest])[0])


def value_of(shape: Shape) -> bytes:
    """The packed value of a complete shape."""
    assert shape.outline is not None
    assert shape.pieces is not None
    return b"".join([shape.header, *shape.pieces.chunks, shape.outline.tail])


class Reader:
    """Reads one thread's records, each once."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self._records: dict[bytes, dag.Record | None] = {}

    def record(self, id: bytes) -> dag.Record | None:
        """The record of a checkpoint; None if it is missing."""
        if id not in self._records:
            found = dag.checkpoint(self.rows, id)
            self._records[id] = None if found is None else found.record
        return self._records[id]

    def records(self) -> tuple[bytes, ...]:
        """The rows of all records that were asked for, read or missing."""
        return tuple([dag.CHECKPOINT + id for id in self._records])

    def recipes(self, name: str) -> Callable[[bytes], Recipe | None]:
        """A function from a checkpoint's id to one channel's recipe there; None if either is missing."""

        def of(id: bytes) -> Recipe | None:
            record = self.record(id)
            return None if record is None else record.channels.get(name)

        return of

    def sketches(self, id: bytes) -> dict[str, Shape]:
        """As the function `sketches`, for a checkpoint's id; empty if it is missing."""
        record = self.record(id)
        return {} if record is None else sketches(record)

    def outlined(self, id: bytes, name: str, shape: Shape) -> Shape | None:
        """The shape of a channel of checkpoint `id` with its outline; None if that cannot be read."""
        recipes = self.recipes(name)
        recipe = recipes(shape.home or id)
        outline = None if recipe is None else channel.outline_of(recipe, recipes)
        if outline is None or channel.hash_of(shape.header, outline.tops, outline.tail) != shape.hash:
            return None
        return replace(shape, outline=outline, pieces=None if outline.tops else channel.NO_PIECES)


def _assembled(reader: Reader, found: dag.Checkpoint, name: str, shape: Shape) -> Shape:
    recipe = found.record.channels[name]
    outline = channel.outline_of(recipe, reader.recipes(name))
    records = dag.CHECKPOINT + found.id, *reader.records()
    if outline is None:
        raise corrupt(found.id, name, "a checkpoint that it builds on is missing", records)
    if channel.hash_of(recipe.header, outline.tops, outline.tail) != recipe.hash:
        raise corrupt(found.id, name, "its hash does not match", records)

    def node(digest: bytes) -> bytes:
        return _chunks(reader.rows, found, name, [digest])[0]

    digests = list(tree.leaves(outline.tops, node))
    pieces = Pieces(_chunks(reader.rows, found, name, digests), digests)
    if len(recipe.header) + sum(map(len, pieces.chunks)) + len(outline.tail) != recipe.size:
        raise corrupt(found.id, name, "its size does not match", records)
    return replace(shape, outline=outline, pieces=pieces)


def _chunks(rows: Rows, found: dag.Checkpoint, name: str, digests: Sequence[bytes]) -> list[bytes]:
    """Read chunks by their digests.

    Raises:
        StoreCorrupt: some are missing or damaged; `lost` names the rows of all of these.
    """
    pieces: list[bytes] = []
    lost: dict[bytes, str] = {}
    for digest in digests:
        try:
            piece = dag.chunk(rows, digest)
        except StoreCorrupt:  # The block that holds it is damaged.
            lost[digest] = "unreadable"
            continue
        if piece is None or sha256(piece).digest() != digest:
            lost[digest] = "missing" if piece is None else "damaged"
        else:
            pieces.append(piece)
    if lost:
        first, how = next(iter(lost.items()))
        more = f", and {len(lost) - 1} more" if len(lost) > 1 else ""
        rows_lost = tuple([dag.CHUNK + digest for digest in lost])
        raise corrupt(found.id, name, f"chunk {first.hex()} is {how}{more}", rows_lost)
    return pieces


def _missing(rows: Rows, chunks: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    if pruning.any_pruned(rows):
        return dict(chunks)  # A stored chunk may belong to pruned checkpoints only, and be swept on other nodes.
    return {digest: piece for digest, piece in chunks.items() if dag.chunk_size(rows, digest) is None}


def corrupt(id: bytes, name: str, why: str, lost: tuple[bytes, ...] = ()) -> StoreCorrupt:
    """The error for a channel that cannot be put together."""
    return StoreCorrupt(
        f"channel {name!r} of checkpoint {id.hex()} cannot be read: {why}. "
        "Other checkpoints are not affected; run `shoal verify` to list all damage.",
        lost=lost,
    )
