"""The rows of table `K`: the operation that a request's key stands for and, once it has left the log, its answer.

Laws:
- While the operation is in the log, the row is its dot, and the answer is read from the log. The batch that truncates the
  log extends the row by all that a repeated request needs.
- Of two operations with one key the least dot counts, on every replica. But a key is known for `key_window_s` only: an
  operation issued later than that takes the key over.

Which keys of requests expire: those whose window is over, and of which no second operation can still arrive.

Laws:
- A key expires only after its operation has left the log.
- It is at least `key_window_s` old, and its operation is stable in two steps (`shoal.cluster.truncation`), so that no owner
  can still have issued an operation with the same key. After `forget_after_s` it goes in any case.
- One call looks at a bounded number of rows. A partition's keys are all looked at several times in each window.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from shoal.cluster.operation import Body
from shoal.cluster.truncation import Cut, Holding, advanced_cut
from shoal.config import Config
from shoal.crdt.dot import DOT_BYTES, Dot
from shoal.crdt.rows import successor
from shoal.errors import ShoalError, StoreCorrupt
from shoal.node.appliers import mutation
from shoal.node.appliers.mutation import Mutation
from shoal.node.handler import Target
from shoal.protocol.keys import first_key
from shoal.records import NamedTuple
from shoal.storage import keys
from shoal.storage.interface import Storage
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


def unpack_answer(stored: bytes) -> KeyRow:
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


_CURSOR = keys.meta("expiring")  # For programs that open their store for a moment only.
_ROWS_MAX = 256
_PASSES = 16  # Through all keys of a partition, in each window.


class Expired(NamedTuple):
    """The rows to delete, and whether the same call, once more, may find others."""

    rows: dict[bytes, bytes | None]
    more: bool


class _Pass(NamedTuple):
    """How far the keys of a partition were looked at."""

    after: bytes  # The row of the last one; empty: none yet.
    next_ms: int = 0  # The next pass begins then.
    is_held_up: bool = False  # Whether it met keys that are not stable yet.


class Expiry:
    """Finds the keys that expire. It writes nothing."""

    def __init__(self, storage: Storage, config: Config) -> None:
        self._storage = storage
        self._window_ms = config.key_window_s * 1000
        self._forget_ms = max(self._window_ms, int(config.forget_after_s * 1000))
        self._began_after = storage.get(_CURSOR) or b""
        self._passes = {int.from_bytes(self._began_after[1:3], "big"): _Pass(self._began_after)} if self._began_after else {}
        self._cuts: dict[int, Cut] = {}

    def expired(self, number: int, owners: list[Holding], now_ms: int) -> Expired:
        """The keys of a partition that expire now, as far as one call looks. `owners` are all of them, this node first."""
        under_way = self._passes.get(number, _Pass(b""))
        if not under_way.after and now_ms < under_way.next_ms:
            return Expired({}, more=False)
        cut = self._cuts[number] = advanced_cut(self._cuts.get(number, Cut()), owners)
        gone: dict[bytes, bytes | None] = {}
        looked, held_up = 0, under_way.is_held_up
        for start, stop in self._ranges(number, under_way.after, now_ms):
            for key, stored in self._storage.scan(start, stop, limit=_ROWS_MAX - looked):
                looked += 1
                under_way = _Pass(key, is_held_up=held_up)
                try:
                    row = unpack_answer(stored)
                except StoreCorrupt:
                    continue  # `shoal verify` reports it.
                if row.wall_ms is None or now_ms - row.wall_ms <= self._window_ms:
                    continue
                if cut.stable.covers(row.dot) or now_ms - row.wall_ms > self._forget_ms:
                    gone[key] = None
                else:
                    held_up = True
        if looked >= _ROWS_MAX:
            self._passes[number] = under_way._replace(is_held_up=held_up)
            return Expired(gone, more=True)
        self._passes[number] = _Pass(b"", 0 if held_up else now_ms + self._window_ms // _PASSES)
        return Expired(gone, more=False)

    def left(self) -> dict[bytes, bytes | None]:
        """The row with which the next opening continues where this one ends; none if it has not changed."""
        after = next((under_way.after for under_way in self._passes.values() if under_way.after), b"")
        return {} if after == self._began_after else {_CURSOR: after or None}

    def _ranges(self, number: int, after: bytes, now_ms: int) -> list[tuple[bytes, bytes | None]]:
        """The keys to look at: all but those that clients made too lately, which sort by their times."""
        prefix = keys.request_key(number, "")
        start = after + b"\x00" if after else prefix
        young = keys.request_key(number, first_key(now_ms - self._window_ms))
        later = keys.request_key(number, first_key(now_ms + self._window_ms))
        return [
            (max(start, low), high)
            for low, high in ((prefix, young), (later, successor(prefix)))
            if high is None or start < high
        ]
