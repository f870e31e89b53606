"""The node's key, and the statements that it signs.

Laws:
- The key is made once for each id of a node, and leaves its directory only with the directory.
- A statement covers only what is durable here, so that no crash makes it a lie.
- Statements that are kept are numbered without gaps. The number of one, and its bytes, are durable before anybody sees it.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from shoal.audit import statements
from shoal.cluster.operation import Tip
from shoal.node.environment import Environment
from shoal.node.incarnation import Incarnation
from shoal.node.partitions import Partition, Partitions
from shoal.node.transaction import Transaction
from shoal.protocol.requests import LogHead, Statement
from shoal.storage import keys
from shoal.storage.commit import GroupCommit
from shoal.storage.interface import Storage

Heads = Mapping[tuple[int, bytes], LogHead]


class _Kept(msgspec.Struct, array_like=True, frozen=True):
    """The row of a node: its private key, and the last statement that it keeps."""

    seed: bytes
    last: Statement | None = None


class Signer:
    """Signs for one node."""

    def __init__(
        self,
        storage: Storage,
        commit: GroupCommit,
        partitions: Partitions,
        *,
        incarnation: Incarnation,
        environment: Environment,
    ) -> None:
        self._storage = storage
        self._commit = commit
        self._partitions = partitions
        self._incarnation = incarnation
        self._environment = environment
        self._told: Heads = {}  # What this process has stated in statements that are kept.

    @property
    def last(self) -> Statement | None:
        """The last statement that is kept, or is to be."""
        return self._read().last

    async def sign(self) -> Statement:
        """A statement on all that is durable now, which is not kept.

        Raises:
            ReadOnly, StorageFull: storage failed.
        """
        kept = self._read()
        heads = await self._durable()
        return self._signed(kept, list(heads.values()), number=0)

    async def state(self) -> Statement | None:
        """The next statement to keep, on what has grown since the last one; None if nothing has.

        Raises:
            ReadOnly, StorageFull: storage failed.
        """
        kept = self._read()
        heads = await self._durable()
        grown = [head for place, head in heads.items() if self._told.get(place) != head]
        if not grown:
            return None
        found = self._signed(kept, grown, number=1 if kept.last is None else kept.last.number + 1)
        self._write(_Kept(kept.seed, found))
        await self._commit.wait_durable(self._commit.written)
        self._told = heads
        return found

    async def _durable(self) -> Heads:
        self._partitions.load_all()
        heads = {
            (number, origin): LogHead(number, origin, tip.sequence, tip.hlc, tip.chain)
            for number in sorted(self._partitions.vectors())
            for origin, tip in _logs(self._partitions.load(number))
        }
        await self._commit.wait_durable(self._commit.written)
        return heads

    def _signed(self, kept: _Kept, heads: list[LogHead], *, number: int) -> Statement:
        current = self._incarnation.current
        return statements.signed(
            Statement(
                node=self._incarnation.node,
                number=number,
                time_ms=self._environment.now_ms(),
                previous=b"" if kept.last is None else statements.digest(kept.last),
                own=[] if current is None else [bytes(current)],
                heads=heads,
                key=b"",
                signature=b"",
            ),
            kept.seed,
        )

    def _read(self) -> _Kept:
        stored = self._storage.get(self._row)
        if stored is not None:
            return msgspec.msgpack.decode(stored, type=_Kept)
        kept = _Kept(self._environment.entropy(statements.SEED_BYTES))
        self._write(kept)
        return kept

    def _write(self, kept: _Kept) -> None:
        transaction = Transaction(self._storage)
        self._incarnation.settle(transaction)  # The key is the id's, which is not recorded before the first write.
        transaction.put(self._row, msgspec.msgpack.encode(kept))
        self._commit.write(transaction.rows)
        transaction.written()

    @property
    def _row(self) -> bytes:
        return keys.meta("audit/") + self._incarnation.node


def _logs(partition: Partition) -> list[tuple[bytes, Tip]]:
    """The last operations of its logs, also of retired origins of which the log still holds something."""
    retired = [(bytes(origin), found.tip) for origin, found in partition.retired.all() if found.is_logged]
    return sorted([*((bytes(origin), tip) for origin, tip in partition.tips.items()), *retired])
