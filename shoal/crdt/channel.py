"""How a channel's value is stored: as a recipe against the checkpoint before it.

Laws:
- A channel's hash is a function of its value alone, whatever the recipe; so is whether it is inline.
- A recipe describes the value against another checkpoint's (`base`): the first
  `keep` chunks are that one's. Neither the value's bytes nor the list of its
  chunks is written again while it grows at its end.
- A chain of recipes is at most `DEPTH_MAX` long; then the list is written in
  full, so that loading reads a bounded number of records.

The header of a msgpack array or map counts its elements, and so changes with
each append; it is kept apart, so that what follows shares its prefix.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import NamedTuple

import msgspec

from shoal.crdt.chunking import cuts, shared_prefix

DEPTH_MAX = 32
INLINE_BYTES_MAX = 1024  # Up to here a value would be one chunk, and a row of its own costs more than it saves.
TINY_BYTES_MAX = 64  # Up to here the bytes cost no more than to say where they are.


class Recipe(msgspec.Struct, array_like=True, frozen=True):
    """How to make a value: the header, then `inline`, or kept chunks of `base` and then `chunks`.

    With a base, nothing kept and no chunks it is the base's inline value.
    """

    hash: bytes  # Over the header and the chunks' digests, or the inline value; a tiny one is its own, and has none.
    header: bytes
    inline: bytes = b""
    base: bytes = b""  # A checkpoint id, or empty.
    keep: int = 0
    chunks: list[bytes] = []
    depth: int = 0  # Recipes to read after this one.


class Shape(NamedTuple):
    """A value taken apart: what the next save of the same channel is compared with."""

    hash: bytes
    header: bytes
    body: bytes
    ends: list[int]  # Where the body's chunks end; empty for an inline value.
    digests: list[bytes]
    home: bytes  # The checkpoint that holds the recipe; empty for the one that the shape was made for.
    depth: int


class Draft(NamedTuple):
    recipe: Recipe
    shape: Shape
    chunks: dict[bytes, bytes]  # New ones, by digest.


def split(packed: bytes) -> tuple[bytes, bytes]:
    """The header of a packed array or map, and the rest; other values have no header."""
    first = packed[0] if packed else 0
    size = 1 if 0x80 <= first <= 0x9F else {0xDC: 3, 0xDD: 5, 0xDE: 3, 0xDF: 5}.get(first, 0)
    return packed[:size], packed[size:]


def hash_of(header: bytes, body: bytes, digests: list[bytes]) -> bytes:
    """The hash of a value: over all its chunks' digests, or its inline body; none for a tiny one."""
    if digests:
        return sha256(b"\x01" + len(header).to_bytes(1, "big") + header + b"".join(digests)).digest()
    return sha256(b"\x00" + header + body).digest() if len(body) > TINY_BYTES_MAX else b""


def draft(packed: bytes, base: Shape | None, base_id: bytes) -> Draft:
    """Describe a value, against the same channel of checkpoint `base_id` before it, if there is one."""
    header, body = split(packed)
    if base is not None and base.header == header and base.body == body:
        return _unchanged(base, base_id)
    if len(body) <= INLINE_BYTES_MAX:
        hash = hash_of(header, body, [])
        return Draft(Recipe(hash, header, body), Shape(hash, header, body, [], [], b"", 0), {})
    ends, digests = _kept(body, base)
    keep, at = len(ends), ends[-1] if ends else 0
    chunks = {}
    for end in cuts(body, at):
        piece = body[at:end]
        digest = sha256(piece).digest()
        chunks[digest] = piece
        ends.append(end)
        digests.append(digest)
        at = end
    shape = Shape(hash_of(header, body, digests), header, body, ends, digests, b"", 0)
    if base is None or not keep or base.depth >= DEPTH_MAX:
        return Draft(Recipe(shape.hash, header, chunks=digests), shape, chunks)
    shape = shape._replace(depth=base.depth + 1)
    recipe = Recipe(shape.hash, header, base=base.home or base_id, keep=keep, chunks=digests[keep:], depth=shape.depth)
    return Draft(recipe, shape, chunks)


def _unchanged(base: Shape, base_id: bytes) -> Draft:
    if not base.hash:
        return Draft(Recipe(b"", base.header, base.body), base, {})
    # It points at the checkpoint in which the value last changed, so the chain does not grow.
    shape = base if base.home else base._replace(home=base_id)
    return Draft(Recipe(base.hash, base.header, base=shape.home, keep=len(base.digests), depth=base.depth + 1), shape, {})


def _kept(body: bytes, base: Shape | None) -> tuple[list[int], list[bytes]]:
    """The leading chunks of `base` that are chunks of `body` too."""
    # The last chunk ends where the old data ended, which need not be a cut.
    if base is None or len(base.ends) < 2:
        return [], []
    shared = shared_prefix(base.body, body)
    keep = sum(1 for end in base.ends[:-1] if end <= shared)
    return base.ends[:keep], base.digests[:keep]


def digests_of(recipe: Recipe, of_base: Callable[[bytes], Recipe | None]) -> list[bytes] | None:
    """All chunk digests of a value, in order; None if a checkpoint it is described against is missing.

    `of_base` gives the same channel's recipe in another checkpoint.
    """
    parts = [recipe.chunks]
    keep, base = recipe.keep, recipe.base
    for _ in range(DEPTH_MAX + 2):
        if not base:
            break
        older = of_base(base)
        if older is None:
            return None
        # What is kept of `older` may lie wholly within what that one keeps itself.
        parts.append(older.chunks[: max(0, keep - older.keep)])
        keep, base = min(keep, older.keep), older.base
    if base:
        return None
    return [digest for part in reversed(parts) for digest in part]


def inline_of(recipe: Recipe, of_base: Callable[[bytes], Recipe | None]) -> bytes | None:
    """The body of a value without chunks; None if the checkpoint that has it is missing."""
    if not recipe.base:
        return recipe.inline
    older = of_base(recipe.base)
    return None if older is None else older.inline


def is_sound(recipe: Recipe, of_base: Callable[[bytes], Recipe | None]) -> bool:
    """Whether a recipe makes what its hash names, and has nothing in it that does not count for that."""
    digests, inline = digests_of(recipe, of_base), inline_of(recipe, of_base)
    if digests is None or inline is None or hash_of(recipe.header, inline, digests) != recipe.hash:
        return False
    older = of_base(recipe.base) if recipe.base else None
    depth = 0 if older is None else older.depth + 1
    unused = recipe.inline if recipe.base or digests else b""
    return not unused and recipe.depth == depth and recipe.keep + len(recipe.chunks) == len(digests)
