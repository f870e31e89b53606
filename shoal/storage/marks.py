"""The rows of the marks of peers (`shoal.cluster.marks`).

Laws:
- An entry never names a retired origin that this node has forgotten: the two go in one write
  (`shoal.node.collection.retiring`). Nobody could tell such an entry from one of an operation that this node never had.
- A node has entries only if its address is stored too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator

from shoal.crdt.dot import ORIGIN_BYTES, Origin, VersionVector
from shoal.crdt.rows import successor
from shoal.storage import keys
from shoal.storage.interface import Storage

_MARK = keys.meta("mark/")  # node₁₆ partition₂ origin₁₆ → sequence₈
_ADDRESS = keys.meta("marked/")  # node₁₆ → the address at which it was reached last.
_NODE_BYTES = 16
_PLACE_BYTES = 2 + ORIGIN_BYTES + 1  # Longer than any place.


def entry(node: bytes, partition: int, origin: Origin) -> bytes:
    """The key of the entry of an origin in the mark of a node."""
    return _MARK + node + partition.to_bytes(2, "big") + origin


def split_entry(key: bytes) -> tuple[bytes, int, Origin] | None:
    """The node, the partition and the origin in the key of an entry; None: it is another key."""
    if not key.startswith(_MARK):
        return None
    node, place = key[len(_MARK) : len(_MARK) + _NODE_BYTES], key[len(_MARK) + _NODE_BYTES :]
    return node, int.from_bytes(place[:2], "big"), Origin(place[2:])


def entries(node: bytes) -> tuple[bytes, bytes]:
    """The range of all entries of a node."""
    first = _MARK + node
    return first, first + b"\xff" * _PLACE_BYTES


def address(node: bytes) -> bytes:
    """The key of the address at which a node was reached last."""
    return _ADDRESS + node


def addresses(storage: Storage) -> Iterator[tuple[bytes, bytes]]:
    """The nodes with the addresses at which each was reached last, by node."""
    for key, found in storage.scan(_ADDRESS, successor(_ADDRESS)):
        yield key[len(_ADDRESS) :], found


def vectors(storage: Storage) -> dict[bytes, dict[int, VersionVector]]:
    """The marks, by node and partition."""
    found: dict[bytes, dict[int, dict[Origin, int]]] = defaultdict(lambda: defaultdict(dict))
    for key, sequence in storage.scan(_MARK, successor(_MARK)):
        split = split_entry(key)
        assert split is not None
        node, partition, origin = split
        found[node][partition][origin] = int.from_bytes(sequence, "big")
    return {node: {partition: VersionVector(vector) for partition, vector in each.items()} for node, each in found.items()}


def is_any(storage: Storage) -> bool:
    """Whether another node was ever reached."""
    return bool(list(storage.scan(_ADDRESS, successor(_ADDRESS), limit=1)))


def without(storage: Storage, partition: int, origins: Collection[Origin]) -> dict[bytes, bytes | None]:
    """The rows that delete what all marks say of these origins."""
    nodes = [node for node, _ in addresses(storage)]
    return {entry(node, partition, origin): None for node in nodes for origin in sorted(origins)}
