"""A growing list of digests, described by a few: the tops of a tree with `FANOUT` children to a node.

A flat list would be hashed whole by each save, and written whole by many: 64 KB for 10,000 messages of 1 KB.

Laws:
- The tops are a function of the list alone, and so are the nodes.
- A node is the digests of its children in order, stored under its own SHA-256. It is
  complete when it is made, and never changes: an append makes about one node for every
  `FANOUT` digests, and leaves all others as they are.
- Level 0 of the tops holds the newest digests of the list; level n holds the digests of
  nodes that stand for `FANOUT` to the power of n digests each. Each level has fewer than
  `FANOUT` entries, so a list of any length has a short description.

It is the counter with base `FANOUT` of Merkle mountain ranges (Todd, 2012).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256

FANOUT = 32
DIGEST_BYTES = 32

Tops = tuple[tuple[bytes, ...], ...]


def grown(tops: Tops, digests: Sequence[bytes]) -> tuple[Tops, dict[bytes, bytes]]:
    """The tops after `digests` are appended, and the nodes that this completes, by digest."""
    if not digests:
        return tops, {}
    levels = [list(level) for level in tops]
    nodes: dict[bytes, bytes] = {}
    for leaf in digests:
        digest, at = leaf, 0
        while True:
            if at == len(levels):
                levels.append([])
            levels[at].append(digest)
            if len(levels[at]) < FANOUT:
                break
            node = b"".join(levels[at])
            digest = sha256(node).digest()
            nodes[digest] = node
            levels[at] = []
            at += 1
    return tuple(tuple(level) for level in levels), nodes


def count(tops: Tops) -> int:
    """How many digests the list has."""
    return sum(len(level) * FANOUT**height for height, level in enumerate(tops))


def children(node: bytes) -> list[bytes]:
    """The digests in a node, in order."""
    return [node[at : at + DIGEST_BYTES] for at in range(0, len(node), DIGEST_BYTES)]


def leaves(tops: Tops, node_of: Callable[[bytes], bytes], *, skip: int = 0) -> Iterator[bytes]:
    """The list, in order, without its first `skip` digests; nodes above only skipped digests are not read.

    `node_of` returns a node's bytes by digest; its exceptions pass through.
    """
    for height in range(len(tops) - 1, -1, -1):
        for digest in tops[height]:
            yield from _below(digest, height, node_of, skip)
            skip = max(0, skip - FANOUT**height)


def _below(digest: bytes, height: int, node_of: Callable[[bytes], bytes], skip: int) -> Iterator[bytes]:
    if skip >= FANOUT**height:
        return
    if height == 0:
        yield digest
        return
    for child in children(node_of(digest)):
        yield from _below(child, height - 1, node_of, skip)
        skip = max(0, skip - FANOUT ** (height - 1))
