"""The rows of table `K`: the operation that a request's key stands for and, once it has left the log, its answer.

Laws:
- While the operation is in the log, the row is its dot, and the answer is read from the log. The batch that truncates the
  log extends the row by all that a repeated request needs.
- Of two operations with one key the least dot counts, on every replica. But a key is known for `key_window_s` only: an
  operation issued later than that takes the key over.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from shoal.cluster.operation import Body
from shoal.crdt.dot import DOT_BYTES, Dot
from shoal.errors import ShoalError, StoreCorrupt
from shoal.node.appliers import mutation
from shoal.node.appliers.mutation import Mutation
from shoal.node.target import Target
from shoal.records import NamedTuple
from shoal.storage.keys import Kind


class Changed(msgspec.Struct, array_like=True, frozen=True):
    """An object that an operation changed, and the generation that it changed."""

    kind: int
    space: str
    name: str
    generation: int

    @property
    def target(self) -> Target:
        """The object."""
        return Target(Kind(self.kind), self.space, self.name)


class Kept(msgspec.Struct, array_like=True, frozen=True):
    """The part of an operation that is kept for its key after it has left the log."""

    receipt: bytes  # Empty: it was erased.
    changed: list[Changed]


class KeyRow(NamedTuple):
    """A row, decoded. The last two are None while the operation is in the log."""

    dot: Dot
    wall_ms: int | None
    kept: Kept | None


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Kept)


def changed_by(mutations: Iterable[Mutation]) -> list[Changed]:
    """The objects that these mutations change, each once; those that they only delete are left out."""
    found = [Changed(m.kind, m.space, m.name, m.generation) for m in mutations if not mutation.ends(m.change)]
    return list(dict.fromkeys(found)) if len(found) > 1 else found


def truncated(dot: Dot, body: Body) -> bytes:
    """The row of an operation's key once it leaves the log.

    If the operation cannot be decoded, the row names no objects.
    """
    try:
        changed = changed_by(mutation.decode(body.payload))
    except ShoalError:
        changed = []
    return dot.pack() + body.wall_ms.to_bytes(8, "big") + _encoder.encode(Kept(body.receipt, changed))


def without_answer(stored: bytes, kept: Kept) -> bytes:
    """A truncated row whose answer is erased: what the request wrote is gone, and its key must not be used again."""
    return stored[: DOT_BYTES + 8] + _encoder.encode(Kept(b"", kept.changed))


def unpack(stored: bytes) -> KeyRow:
    """The row in these bytes.

    Raises:
        StoreCorrupt: these bytes are no such row.
    """
    dot = Dot.unpack(stored[:DOT_BYTES])
    if len(stored) == DOT_BYTES:
        return KeyRow(dot, None, None)
    try:
        return KeyRow(dot, int.from_bytes(stored[DOT_BYTES : DOT_BYTES + 8], "big"), _decoder.decode(stored[DOT_BYTES + 8 :]))
    except ValueError as error:  # msgspec's own are ValueErrors, and so are those of text that is no UTF-8.
        raise StoreCorrupt(f"the row of an idempotency key cannot be decoded: {error}.") from None


def counts(dot: Dot, wall_ms: int, other: Dot, other_ms: int, *, window_ms: int) -> bool:
    """Whether the key stands for the operation `dot` and not for `other`: when each was issued decides, or their dots."""
    if abs(wall_ms - other_ms) > window_ms:
        return wall_ms > other_ms
    return dot < other
