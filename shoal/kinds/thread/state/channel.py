"""How a channel's value is stored: as a recipe against an earlier checkpoint.

A value is a header, chunks and a tail. The *header* is that of a msgpack array or
map: it counts the elements, and so changes with each append. The body after it is
cut by its content (`shoal.kinds.thread.state.chunking`). The *tail* is the rest after the last cut:
it is written inline, piece by piece, until a cut completes a chunk. The chunks'
digests are the leaves of a tree (`shoal.kinds.thread.state.chunking`).

Laws:
- A channel's hash is a function of its value alone, whatever the recipe.
- An append writes only new bytes: while a value grows at its end, neither its bytes
  nor the list of its chunks are written again, except each byte of the tail once more
  when its chunk is complete.
- A change anywhere writes and hashes only chunks that the base does not have: a cut depends
  only on the bytes since the one before, so after a cut that the base has, too, all are the same.
- A chain of recipes is at most `DEPTH_MAX` long; then the tree's tops and the tail
  are written in full, so that loading reads a bounded number of records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256
from itertools import pairwise

import msgspec
from msgspec.structs import replace

from shoal.kinds.thread.state import chunking as tree
from shoal.kinds.thread.state.chunking import CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, Tops, cuts
from shoal.records import NamedTuple

DEPTH_MAX = 32
TINY_BYTES_MAX = 64  # Up to this size a value takes no more space than a reference to it.
# If two saves made one checkpoint, the record that counts may have a longer chain than the one its successors saw.
_CHAIN_MAX = 16 * DEPTH_MAX
_LOOK_BYTES = 4 * CHUNK_BYTES_MAX  # How far beyond a change the next common cut is looked for at first.


class Recipe(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """How to make a value: the header, the chunks, the tail.

    The chunks are those below `tops`, or without them those of `base`, and then `added`.
    The tail is `tail`, after that of `base` if `keep` is set.
    """

    hash: bytes  # `hash_of` the value; empty for a tiny one, which is compared itself.
    size: int  # Bytes of the whole value.
    header: bytes
    tail: bytes = b""
    base: bytes = b""  # The id of a checkpoint with a channel of this name, or empty.
    keep: bool = False  # Whether the value's tail begins with that of `base`.
    added: tuple[bytes, ...] = ()  # Digests of chunks.
    nodes: tuple[bytes, ...] = ()  # Digests of the tree's nodes that these chunks complete.
    tops: Tops = ()
    depth: int = 0  # Recipes to read after this one.

    @property
    def points(self) -> bool:
        """Whether the value is the same as the base's."""
        return bool(self.base) and self.keep and not (self.tail or self.added or self.tops)


class Outline(msgspec.Struct, frozen=True, gc=False):
    """A value without its chunks' bytes: enough to describe an append."""

    tops: Tops
    tail: bytes


class Pieces(NamedTuple):
    """Chunks and their digests. The lists are shared, and never changed."""

    chunks: list[bytes]
    digests: list[bytes]


NO_PIECES = Pieces([], [])
_NO_ROWS: Mapping[bytes, bytes] = {}


SMALL_BYTES = 400  # What a shape costs in memory beside its value.


class Shape(msgspec.Struct, frozen=True, gc=False):
    """A value taken apart, as far as it is known. The next save of the same channel is compared with it."""

    hash: bytes
    size: int
    header: bytes
    home: bytes  # The checkpoint that holds the recipe; empty for the one that the shape was made for.
    depth: int
    outline: Outline | None
    pieces: Pieces | None

    @property
    def cost_bytes(self) -> int:
        """The memory that it takes. A digest and its chunk cost about 100 bytes as Python objects."""
        if self.pieces is not None:
            return SMALL_BYTES + self.size + 100 * len(self.pieces.digests)
        if self.outline is None:
            return SMALL_BYTES
        return SMALL_BYTES + len(self.outline.tail) + 70 * sum(map(len, self.outline.tops))


class Draft(msgspec.Struct, frozen=True, gc=False):
    """A value's description: the recipe to store, the shape to compare the next value with, and the rows to write."""

    recipe: Recipe
    shape: Shape
    rows: Mapping[bytes, bytes]  # New chunks, and nodes of the tree, by digest.


def header_bytes(packed: bytes) -> int:
    """The length of the header of a packed array or map; other values have none."""
    first = packed[0] if packed else 0
    return 1 if 0x80 <= first <= 0x9F else {0xDC: 3, 0xDD: 5, 0xDE: 3, 0xDF: 5}.get(first, 0)


def hash_of(header: bytes, tops: Tops, tail: bytes) -> bytes:
    """The hash of a value; empty for a tiny one."""
    if tops:
        counted = [bytes([len(digests)]) + b"".join(digests) for digests in tops]
        return sha256(b"".join([b"\x01", bytes([len(header)]), header, bytes([len(tops)]), *counted, tail])).digest()
    return sha256(b"\x00" + header + tail).digest() if len(tail) > TINY_BYTES_MAX else b""


def draft(packed: bytes, base: Shape | None = None, base_id: bytes = b"", *, start: int | None = None) -> Draft:
    """Describe a value, against the same channel of checkpoint `base_id`, if there is one; `start` is its `header_bytes`.

    If the value is known to begin with the base's (`beyond`), `grow` does this at a lower cost.
    """
    if start is None:
        start = header_bytes(packed)
    if len(packed) - start < CHUNK_BYTES_MIN:
        return draft_small(packed, start, base, base_id)
    known = base.pieces if base is not None and base.pieces is not None else NO_PIECES
    kept, at = _kept(packed, start, known.chunks)
    changed, later, at = _changed(packed, at, known, kept, b"" if base is None or base.outline is None else base.outline.tail)
    fresh = Pieces(changed, [sha256(chunk).digest() for chunk in changed])
    whole = _joined(_joined(_part(known, 0, kept), fresh), _part(known, later, len(known.chunks)))
    value = _Value(len(packed), packed[:start], packed[at:], whole)
    return _settle(value, _step(whole, kept, base), base, base_id)


def draft_small(packed: bytes, start: int, base: Shape | None, base_id: bytes) -> Draft:
    """As `draft`, for a value of less than `CHUNK_BYTES_MIN`, too small to have a chunk: most channels of most saves."""
    header, tail = packed[:start], packed[start:]
    hash = sha256(b"\x00" + packed).digest() if len(tail) > TINY_BYTES_MAX else b""  # As `hash_of` makes it.
    old = base.outline if base is not None else None
    if base is not None and base.hash == hash and base.header == header and (hash or (old is not None and old.tail == tail)):
        return point(replace(base, outline=Outline((), tail), pieces=NO_PIECES), base_id)
    size = len(packed)
    shape = Shape(hash, size, header, b"", 0, Outline((), tail), NO_PIECES)
    return Draft(Recipe(hash, size, header, tail), shape, _NO_ROWS)


def beyond(packed: bytes, base: Shape, at: int) -> bytes | None:
    """The bytes after the base's body in a value that begins with it; None if it does not, or that is not known.

    `at` is the length of the value's header.
    """
    if base.pieces is None or base.outline is None:
        return None
    chunks, tail = base.pieces.chunks, base.outline.tail
    if chunks:
        kept, at = _kept(packed, at, chunks)
        if kept < len(chunks):
            return None
    return packed[at + len(tail) :] if packed.startswith(tail, at) else None


def appended(header: bytes, more: bytes, base: Shape) -> bytes | None:
    """`more` as a packed array, if a list was extended by it; None if `header` and the base's are not those of such lists.

    The base was checked before, so only the new elements have to be.
    """
    count, before = _array(header), _array(base.header)
    if count is None or before is None or count < before:
        return None
    return _array_header(count - before) + more


def extend(elements: bytes, base: Shape, base_id: bytes) -> Draft | None:
    """Describe `base`, a list whose outline is known, with the elements of a packed array at its end.

    Returns None if `base` is no list.
    """
    count, start = _array(base.header), header_bytes(elements)
    added = _array(elements[:start])
    assert added is not None
    if count is None:
        return None
    return grow(_array_header(count + added), elements[start:], base, base_id)


def grow(header: bytes, more: bytes, base: Shape, base_id: bytes) -> Draft:
    """Describe a value of `header`, the body of `base` and `more`. The outline of `base` must be known."""
    if not more and header == base.header:
        return point(base, base_id)
    assert base.outline is not None
    tops, old = base.outline.tops, base.outline.tail
    size = base.size - len(base.header) + len(header) + len(more)
    tail, pieces = old + more, base.pieces
    ends = cuts(tail, settled=len(old)) if len(tail) >= CHUNK_BYTES_MIN else ()
    if ends:
        fresh = [tail[start:end] for start, end in pairwise((0, *ends))]
        added = Pieces(fresh, [sha256(chunk).digest() for chunk in fresh])
        whole = None if pieces is None else _joined(pieces, added)
        return _settle(_Value(size, header, tail[ends[-1] :], whole), _Delta(tops, added, grows=True), base, base_id)
    # The tail alone grows: most saves of most lists.
    hash, keep = hash_of(header, tops, tail), len(old) > TINY_BYTES_MAX
    if base.depth < DEPTH_MAX and (keep or tops):
        home = base.home or base_id
        recipe = Recipe(hash, size, header, more if keep else tail, base=home, keep=keep, depth=base.depth + 1)
    else:
        recipe = Recipe(hash, size, header, tail, tops=tops)
    return _written(recipe, Outline(tops, tail), pieces, _NO_ROWS)


def _written(recipe: Recipe, outline: Outline, pieces: Pieces | None, rows: Mapping[bytes, bytes]) -> Draft:
    return Draft(recipe, Shape(recipe.hash, recipe.size, recipe.header, b"", recipe.depth, outline, pieces), rows)


def point(base: Shape, base_id: bytes) -> Draft:
    """Describe a value that is equal to the base's."""
    if not base.hash:
        assert base.outline is not None  # A tiny value is in its recipe.
        return Draft(Recipe(b"", base.size, base.header, base.outline.tail), base, _NO_ROWS)
    # It points at the checkpoint in which the value last changed, so the chain does not grow.
    shape = base if base.home else replace(base, home=base_id)
    return Draft(Recipe(base.hash, base.size, base.header, base=shape.home, keep=True, depth=base.depth + 1), shape, _NO_ROWS)


def sketch(recipe: Recipe) -> Shape:
    """The shape of a recipe's value, as far as the recipe alone tells it."""
    # One that only points adds nothing to the chain.
    home, depth = (recipe.base, recipe.depth - 1) if recipe.points else (b"", recipe.depth)
    outline = None if recipe.base else Outline(tree.grown(recipe.tops, recipe.added)[0], recipe.tail)
    pieces = NO_PIECES if outline is not None and not outline.tops else None
    return Shape(recipe.hash, recipe.size, recipe.header, home, depth, outline, pieces)


class _Value(NamedTuple):
    size: int
    header: bytes
    tail: bytes
    pieces: Pieces | None


class _Delta(NamedTuple):
    """A value's chunks: `added` at the end of `start`."""

    start: Tops
    added: Pieces
    grows: bool  # `start` is all that the base has.


def _step(whole: Pieces, kept: int, base: Shape | None) -> _Delta:
    """How to describe all of a value's chunks, of which the first `kept` are known to be the base's."""
    before = None if base is None else base.outline
    count = 0 if before is None else tree.count(before.tops)
    if before is not None and base is not None and base.pieces is None and 0 < count <= len(whole.digests):
        # The base's chunks are not at hand, but its tops tell whether the value begins with them.
        kept = count if tree.grown((), whole.digests[:count])[0] == before.tops else 0
    grows = before is not None and kept == count
    start = before.tops if before is not None and grows else tree.grown((), whole.digests[:kept])[0]
    return _Delta(start, Pieces(whole.chunks[kept:], whole.digests[kept:]), grows)


def _settle(value: _Value, step: _Delta, base: Shape | None, base_id: bytes) -> Draft:
    size, header, tail, pieces = value
    tops, nodes = tree.grown(step.start, step.added.digests)
    outline, hash = Outline(tops, tail), hash_of(header, tops, tail)
    if base is not None and base.header == header and base.hash == hash and (hash or base.outline == outline):
        return point(replace(base, outline=outline, pieces=pieces), base_id)
    added = tuple(step.added.digests)
    stored = () if base is None or base.pieces is None or step.grows else frozenset(base.pieces.digests)
    recipe = Recipe(hash, size, header, tail, added=added, nodes=tuple(nodes), tops=step.start)
    if base is not None and base.outline is not None and base.depth < DEPTH_MAX:
        old = base.outline.tail
        keep = not added and len(old) > TINY_BYTES_MAX and tail.startswith(old)
        grows = step.grows and (bool(step.start) or keep)
        if grows or (keep and step.start):
            recipe = Recipe(
                hash,
                size,
                header,
                tail[len(old) :] if keep else tail,
                base=base.home or base_id,
                keep=keep,
                added=added,
                nodes=recipe.nodes,
                tops=() if grows else step.start,
                depth=base.depth + 1,
            )
    new = {digest: chunk for digest, chunk in zip(added, step.added.chunks, strict=True) if digest not in stored}
    return _written(recipe, outline, pieces, new | nodes)


def _joined(first: Pieces, then: Pieces) -> Pieces:
    if not first.chunks:
        return then
    return Pieces(first.chunks + then.chunks, first.digests + then.digests) if then.chunks else first


def _part(pieces: Pieces, start: int, stop: int) -> Pieces:
    return Pieces(pieces.chunks[start:stop], pieces.digests[start:stop]) if start < stop else NO_PIECES


def _changed(packed: bytes, at: int, known: Pieces, kept: int, tail: bytes) -> tuple[list[bytes], int, int]:
    """The chunks from `at` up to a cut from which on the value ends as the known one does, which has `tail` after its chunks.

    Returns them, the number of the known chunk that follows them (that of all chunks, if none does), and where the tail begins.
    """
    ends = _ends(packed, at, known.chunks[kept:], tail)
    chunks: list[bytes] = []
    limit = min(ends, default=len(packed)) + _LOOK_BYTES
    while at not in ends:
        found = cuts(packed[at:limit] if limit < len(packed) else packed[at:])
        begun = at
        for end in found:
            chunks.append(packed[at : begun + end])
            at = begun + end
            if at in ends:
                break
        else:
            if limit >= len(packed):
                return chunks, len(known.chunks), at
            limit += limit - begun + _LOOK_BYTES
    return chunks, len(known.chunks) - ends[at], len(packed) - len(tail)


def _ends(packed: bytes, at: int, chunks: list[bytes], tail: bytes) -> dict[int, int]:
    """Where the value, after `at`, has the last of these chunks and then the tail: from each place, how many are left."""
    place, places = len(packed) - len(tail), dict[int, int]()
    if place >= at and packed.endswith(tail):
        places[place] = 0
        for left, chunk in enumerate(reversed(chunks), 1):
            place -= len(chunk)
            if place < at or not packed.startswith(chunk, place):
                break
            places[place] = left
    return places


def _kept(packed: bytes, at: int, chunks: list[bytes]) -> tuple[int, int]:
    """How many of the chunks the value begins with from `at`, and where they end in it."""
    kept = 0
    for chunk in chunks:
        if not packed.startswith(chunk, at):
            break
        at += len(chunk)
        kept += 1
    return kept, at


def continued(
    header: bytes, outline: Outline, old_header: bytes, old: Outline, chunk_of: Callable[[bytes], bytes]
) -> tuple[int, bytes] | None:
    """The number of elements of an older list, and what this list holds after them, as a packed array.

    None if one of the two is no list, or if this one does not begin with the older one. Chunks that both have are not read.
    """
    count, before = _array(header), _array(old_header)
    if count is None or before is None or count < before:
        return None
    added = list(tree.leaves(outline.tops, chunk_of, skip=tree.count(old.tops)))
    if tree.grown(old.tops, added)[0] != outline.tops:
        return None
    rest = b"".join([*map(chunk_of, added), outline.tail])
    return (before, _array_header(count - before) + rest[len(old.tail) :]) if rest.startswith(old.tail) else None


def is_array(packed: bytes) -> bool:
    """Whether the value is a msgpack array."""
    return _array(packed[: header_bytes(packed)]) is not None


def _array(header: bytes) -> int | None:
    """The number of elements of a packed array; None if the header is not an array's."""
    if len(header) == 1 and 0x90 <= header[0] <= 0x9F:
        return header[0] - 0x90
    return int.from_bytes(header[1:], "big") if header[:1] in (b"\xdc", b"\xdd") else None


def _array_header(count: int) -> bytes:
    if count < 16:
        return bytes([0x90 + count])
    return b"\xdc" + count.to_bytes(2, "big") if count < 1 << 16 else b"\xdd" + count.to_bytes(4, "big")


def outline_of(recipe: Recipe, of_base: Callable[[bytes], Recipe | None]) -> Outline | None:
    """A value's tops and tail; None if a checkpoint that it is described against is missing.

    `of_base` returns the recipe of the same channel in another checkpoint.
    """
    tails: list[bytes] = []
    added: list[tuple[bytes, ...]] = []
    keep, growing = True, True
    start: Tops = ()
    for _ in range(_CHAIN_MAX):
        if keep:
            tails.append(recipe.tail)
            keep = recipe.keep
        if growing:
            added.append(recipe.added)
            start, growing = recipe.tops, bool(recipe.base) and not recipe.tops
        if not (keep or growing):
            digests = [digest for part in reversed(added) for digest in part]
            return Outline(tree.grown(start, digests)[0], b"".join(reversed(tails)))
        older = of_base(recipe.base) if recipe.base else None
        if older is None:
            return None
        recipe = older
    return None


def is_sound(recipe: Recipe, of_base: Callable[[bytes], Recipe | None]) -> bool:
    """Whether a recipe makes the value that its hash names, and holds nothing that does not matter for that."""
    outline = outline_of(recipe, of_base)
    if outline is None or hash_of(recipe.header, outline.tops, outline.tail) != recipe.hash:
        return False
    before: Outline | None = Outline(recipe.tops, b"")
    if recipe.base and not recipe.tops:
        older = of_base(recipe.base)
        before = None if older is None else outline_of(older, of_base)
    used = not recipe.base or recipe.keep or not recipe.tops
    completed = None if before is None else tuple(tree.grown(before.tops, recipe.added)[1])
    return used and completed == recipe.nodes and 0 <= recipe.depth <= DEPTH_MAX + 1 and bool(recipe.base) >= bool(recipe.depth)
