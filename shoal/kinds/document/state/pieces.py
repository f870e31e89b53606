"""A large update as several small ones, so that no single call of the engine takes long.

Law: applied one after the other, the pieces make what the update makes. No struct comes before one that it
needs, so the engine never has to keep a piece for later.
"""

from __future__ import annotations

from collections.abc import Iterator

from shoal.errors import InvalidValue, StoreCorrupt
from shoal.kinds.document.state.document import Pace
from shoal.kinds.document.state.yjs import CLOCK_MAX, Reader, Struct, pack_varuint

NOTHING = b"\x00\x00"
"""A piece that brings nothing: given where looking takes long."""


def parts(update: bytes, pace: Pace, *, whole_max: int) -> Iterator[bytes]:
    """A stored update whole, or, if it has more than `whole_max` bytes, its pieces.

    Raises:
        StoreCorrupt: it is large, and no Yjs update.
    """
    if len(update) <= whole_max:
        yield update
        return
    try:
        yield from pieces(update, structs_max=pace.updates)
    except InvalidValue as error:
        raise StoreCorrupt(f"a stored update cannot be read: {error.message} Run `shoal verify`.") from None


def pieces(update: bytes, *, structs_max: int) -> Iterator[bytes]:
    """The pieces of an update, each of at most so many structs; its deletions come last.

    Raises:
        InvalidValue: it is no Yjs update.
    """
    reader, runs, looked_at = Reader(update), dict[int, _Run](), 0
    for _ in range(reader.count()):
        many, client, clock = reader.count(), reader.client(), reader.integer()
        if client in runs:
            raise InvalidValue("a client comes twice in the update. Nothing was written.")
        runs[client] = _Run(update, client, many, clock, reader.position)
        for _ in range(many):
            clock += reader.struct(clock, (set(), set())).length
            looked_at += 1
            if looked_at % structs_max == 0:
                yield NOTHING
    taken: dict[int, _Run] = {}
    for count, run in enumerate(_in_order(runs), 1):
        run.take()
        taken[run.client] = run
        if count % structs_max == 0:
            yield _packed(taken)
            taken.clear()
    yield _packed(taken)
    yield b"\x00" + update[reader.position :]


def _in_order(runs: dict[int, _Run]) -> Iterator[_Run]:
    """The runs whose next structs are to be taken, one after the other, each once all that the struct needs is taken."""
    for run in runs.values():
        waiting = [(run, CLOCK_MAX)]  # Each but the first is needed by the one before it, up to this clock.
        while waiting:
            current, until = waiting[-1]
            if current.clock > until or current.head is None:
                waiting.pop()
            elif (needed := _needed(runs, current.head, [each for each, _ in waiting])) is not None:
                waiting.append(needed)
            else:
                yield current


def _needed(runs: dict[int, _Run], struct: Struct, waiting: list[_Run]) -> tuple[_Run, int] | None:
    """A run that must come before a struct, and up to which clock; none that waits for the struct itself."""
    for client, clock in struct.needs:
        run = runs.get(client)
        if run is not None and run.clock <= clock and run.head is not None and run not in waiting:
            return run, clock
    return None


def _packed(taken: dict[int, _Run]) -> bytes:
    return pack_varuint(len(taken)) + b"".join(run.packed() for run in taken.values()) + b"\x00"


class _Run:
    """The structs of one client, of which the first are taken."""

    __slots__ = ("_begin", "_count", "_end", "_first", "_head", "_left", "_reader", "_update", "client", "clock")

    def __init__(self, update: bytes, client: int, left: int, clock: int, at: int) -> None:
        self.client = client
        self.clock = clock  # Of the next struct.
        self._update = update
        self._left = left  # Structs that were not read.
        self._reader = Reader(update, at)
        self._head: Struct | None = None
        self._begin = self._end = at  # What is taken and not packed: these bytes,
        self._first, self._count = clock, 0  # from this clock, so many structs.

    @property
    def head(self) -> Struct | None:
        """The next struct; None if all are taken."""
        if self._head is None and self._left:
            self._head = self._reader.struct(self.clock, (set(), set()))
            self._left -= 1
        return self._head

    def take(self) -> None:
        """Take the head."""
        assert self._head is not None
        self.clock += self._head.length
        self._count += 1
        self._end = self._reader.position
        self._head = None

    def packed(self) -> bytes:
        """The pieces that were taken since the last time, as an update holds them."""
        header = pack_varuint(self._count) + pack_varuint(self.client) + pack_varuint(self._first)
        packed = header + self._update[self._begin : self._end]
        self._begin, self._first, self._count = self._end, self.clock, 0
        return packed
