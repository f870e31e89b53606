"""The snapshots that a node sends and takes, as its replicator sees them.

Sends snapshots of partitions to peers.

Laws:
- A snapshot shows its partition at one moment. Nothing of it is sent before everything in it is durable here.
- At most `snapshots_open_max` are kept, each until its receiver is done or nobody has asked for `SNAPSHOT_IDLE_S`. One that
  fits in one piece is not kept.
- A piece is read again from where it begins, so that a lost one costs nothing but its own bytes.
- A partition that is being replaced here is not sent, and a peer that does not read what waits for it gets nothing.
- A piece for which the queue of the link has no room is asked for again soon.
- While requests wait for the disk here, snapshots take a ninth of the time at most: after each piece the next request is
  read once eight times as long has passed as the piece took. The processor is shared, so a piece takes longer on a busy one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Protocol

import msgspec

from shoal.cluster.comparing import RootsMessage
from shoal.cluster.messages import SNAPSHOT_ID_BYTES, SnapshotPiece, SnapshotRequest
from shoal.cluster.replication import Replication
from shoal.errors import ShoalError
from shoal.node.context import NodeContext
from shoal.node.database import Database
from shoal.node.snapshots import switching
from shoal.node.snapshots.receiving import SnapshotReceiver
from shoal.node.snapshots.witnessing import Others, Witnesses
from shoal.node.tiering.chunks import Chunks
from shoal.storage import keys
from shoal.storage.cold import size_of
from shoal.storage.interface import Snapshot

if TYPE_CHECKING:
    from hashlib import _Hash

SNAPSHOT_IDLE_S = 30.0  # A snapshot of which no piece was asked for, or arrived, is given up.
SNAPSHOT_PIECE_BYTES = 256 * 1024  # Of a partition's rows, in one message; the first row may exceed it.


_BUSY_MS = 50
_RESTS = 8  # After a piece, so many times as long as it took.
_REST_S_MAX = 0.2
_REASON_CHARS_MAX = 1000


@dataclass(slots=True)
class _Kept:
    """A snapshot that a peer is taking."""

    peer: bytes
    attempt: int
    partition: int
    id: bytes
    rows: Snapshot
    used: float
    starts: list[bytes] = field(
        default_factory=lambda: [b""]
    )  # The first key of each piece that is known; empty: the beginning.
    hash: _Hash = field(default_factory=sha256)
    hashed: int = 0  # Pieces.


class SnapshotSender:
    """The snapshots that this node sends.

    `offer` queues a message for a node if there is room; `is_behind` says whether too much waits for it.
    """

    def __init__(
        self,
        context: NodeContext,
        chunks: Chunks,
        *,
        offer: Callable[[bytes, SnapshotPiece], bool],
        is_behind: Callable[[bytes], bool],
    ) -> None:
        self._chunks = chunks
        self._storage = context.storage.raw  # Which shows stubs: `Chunks.filled` replaces them.
        self._commit = context.commit
        self._partitions = context.partitions
        self._offer = offer
        self._is_behind = is_behind
        self._environment = context.environment
        self._config = context.config
        self._kept: dict[bytes, _Kept] = {}  # By id.
        self._opening = 0  # Snapshots that wait until they are durable.
        self._took_s = 0.0  # By the last piece.

    async def asked(self, peer: bytes, request: SnapshotRequest) -> None:
        """Answer a peer's request."""
        if request.done:
            self._release(request.id, peer)
            return
        try:
            answer = await self._answer(peer, request)
        except ShoalError as error:
            answer = _refused(request, error.message, 0)
        if answer is not None and not self._offer(peer, answer):
            refusal = _refused(request, "the queue has no room for this piece", _BUSY_MS)
            self._offer(peer, msgspec.structs.replace(refusal, id=request.id))
        if self._took_s and self._commit.is_awaited:
            rest_s, self._took_s = min(_RESTS * self._took_s, _REST_S_MAX), 0.0
            await asyncio.sleep(rest_s)

    def tick(self, now: float) -> None:
        """Release the snapshots that nobody has asked for."""
        for id, kept in list(self._kept.items()):
            if now - kept.used > SNAPSHOT_IDLE_S:
                self._release(id, kept.peer)

    def stop(self) -> None:
        """Release all snapshots."""
        for id, kept in list(self._kept.items()):
            self._release(id, kept.peer)

    def forget(self, peer: bytes) -> None:
        """Release the snapshots of a peer that is gone for good."""
        for id in [id for id, kept in self._kept.items() if kept.peer == peer]:
            self._release(id, peer)

    def _release(self, id: bytes, peer: bytes) -> None:
        kept = self._kept.get(id)
        if kept is not None and kept.peer == peer:
            del self._kept[id]
            kept.rows.close()

    async def _answer(self, peer: bytes, request: SnapshotRequest) -> SnapshotPiece | None:
        """The answer; None if there is no such piece: the receiver asks ahead before it knows how many there are."""
        kept = self._kept.get(request.id)
        if request.id and (kept is None or kept.peer != peer):
            return _refused(request, "this snapshot is not kept any more", 1)
        if self._is_behind(peer):
            refusal = _refused(request, "too many bytes wait to be sent to you", _BUSY_MS)
            return refusal if kept is None else msgspec.structs.replace(refusal, id=request.id)
        if kept is not None:
            kept.used = self._environment.monotonic()
            while kept.hashed < request.piece and kept.hashed < len(kept.starts):
                await self._piece(kept, kept.hashed)  # The requests for these were lost, or come later.
            return await self._piece(kept, request.piece) if request.piece < len(kept.starts) else None
        again = next((kept for kept in self._kept.values() if (kept.peer, kept.attempt) == (peer, request.attempt)), None)
        if again is not None:
            return await self._piece(again, 0)  # The first answer was lost.
        return await self._begun(peer, request)

    async def _begun(self, peer: bytes, request: SnapshotRequest) -> SnapshotPiece:
        """Take a snapshot, and return its first piece once all of it is durable."""
        if self._partitions.load(request.partition).closed:
            return _refused(request, "this partition is being replaced", _BUSY_MS)
        for id, kept in list(self._kept.items()):
            if (kept.peer, kept.partition) == (peer, request.partition):
                self._release(id, peer)  # It has begun anew.
        if len(self._kept) + self._opening >= self._config.snapshots_open_max:
            return _refused(request, "enough other snapshots are being sent", _BUSY_MS)
        rows = self._storage.snapshot()
        self._opening += 1
        try:
            await self._commit.wait_durable(self._commit.written)
            id = self._environment.entropy(SNAPSHOT_ID_BYTES)
            kept = _Kept(peer, request.attempt, request.partition, id, rows, self._environment.monotonic())
            piece = await self._piece(kept, 0)
        except BaseException:
            rows.close()
            raise
        finally:
            self._opening -= 1
        if piece.digest:
            rows.close()
        else:
            self._kept[id] = kept
        return piece

    async def _piece(self, kept: _Kept, nth: int) -> SnapshotPiece:
        """Read a piece whose beginning is known.

        Raises:
            StoreCorrupt: a block does not pass its checksum.
            Cold: chunks of it are in an object store, which could not be read in time.
        """
        began = kept.used = self._environment.monotonic()
        found, following = self._read(kept, kept.starts[nth])
        rows = switching.pack(await self._chunks.filled(found))
        if nth == kept.hashed:
            kept.hash.update(rows)
            kept.hashed += 1
            if following:
                kept.starts.append(following)
        self._took_s = self._environment.monotonic() - began
        digest = b"" if following else kept.hash.digest()
        return SnapshotPiece(kept.partition, kept.attempt, kept.id, nth, rows, digest)

    def _read(self, kept: _Kept, start: bytes) -> tuple[list[tuple[bytes, bytes]], bytes]:
        return read_piece(kept.rows, kept.partition, start)


def read_piece(rows: Snapshot, partition: int, start: bytes) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """The rows of a piece of a partition that begins at a key, and the key at which the next one begins; empty: there is none.

    It has stubs as they are stored, and counts the bytes of their chunks, which `Chunks.filled` puts in their places.

    Raises:
        StoreCorrupt: a block does not pass its checksum.
    """
    bytes_max, size = SNAPSHOT_PIECE_BYTES, 0
    found: list[tuple[bytes, bytes]] = []
    tables = keys.PARTITION_TABLES[keys.PARTITION_TABLES.index(start[:1]) if start else 0 :]
    for table in tables:
        first, stop = keys.rows_of(table, partition)
        for row in rows.scan(max(first, start) if start[:1] == table else first, stop):
            size += len(row[0]) + size_of(*row)
            if found and size > bytes_max:
                return found, row[0]
            found.append(row)
    return found, b""


def _refused(request: SnapshotRequest, why: str, retry_after_ms: int) -> SnapshotPiece:
    return SnapshotPiece(
        request.partition,
        request.attempt,
        b"",
        request.piece,
        reason=why[:_REASON_CHARS_MAX],
        retry_after_ms=retry_after_ms,
    )


class Outlets(Protocol):
    """The links on which messages go out to peers."""

    def send(self, nodes: Iterable[bytes], message: SnapshotRequest | SnapshotPiece | RootsMessage, /) -> None:
        """Send a message to nodes."""
        ...

    def offer(self, node: bytes, message: SnapshotPiece, /) -> bool:
        """Send a message to a node, unless its queue has no room. Returns whether it was queued."""
        ...

    def is_behind(self, node: bytes, /) -> bool:
        """Whether too many bytes wait to be sent to a node."""
        ...


class SnapshotExchange:
    """Both sides. `installed` is called with each partition that was replaced; then the protocol has effects to carry out."""

    def __init__(
        self,
        context: NodeContext,
        protocol: Replication,
        database: Database,
        *,
        outlets: Outlets,
        others: Others,
        installed: Callable[[int], None],
    ) -> None:
        self._protocol = protocol
        self._database = database
        self._now = context.environment.monotonic
        self._announce = installed
        self._sender = SnapshotSender(context, database.chunks, offer=outlets.offer, is_behind=outlets.is_behind)
        self.witnesses = Witnesses(context, others, send=lambda node, message: outlets.send((node,), message))
        self._receiver = SnapshotReceiver(
            context,
            protocol.snapshots,
            database,
            witnesses=self.witnesses,
            others=others,
            send=lambda node, message: outlets.send((node,), message),
            installed=self._installed,
        )

    async def heard(self, peer: bytes, message: SnapshotRequest | SnapshotPiece) -> None:
        """Take a message of a peer. The protocol may have effects to carry out afterwards."""
        if isinstance(message, SnapshotRequest):
            await self._sender.asked(peer, message)
        else:
            await self._receiver.received(peer, message)
            self._protocol.ask_for_snapshots(self._now())

    def tick(self) -> None:
        """Give up what nobody asks for, or sends."""
        self._receiver.tick()
        self._sender.tick(self._now())

    def forget(self, peer: bytes) -> None:
        """Forget a node that is gone for good."""
        self._sender.forget(peer)

    async def stop(self) -> None:
        """End everything. The next start finishes switches that were begun."""
        await self._receiver.stop()
        await self.witnesses.stop()
        self._sender.stop()

    def _installed(self, partition: int) -> None:
        self._protocol.replaced(partition, self._now())
        self._protocol.ask_for_snapshots(self._now())
        self._announce(partition)
