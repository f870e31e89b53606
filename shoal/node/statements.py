"""The node's key, and the statements that it signs.

Laws:
- The key is made once for each id of a node, and leaves its directory only with the directory.
- A statement covers only what is durable here, so that no crash makes it a lie.
- Statements that are kept are numbered without gaps. The number of one, and its bytes, are durable before anybody sees it.
- A root in a statement is that of exactly the operations which its heads name in that partition: both are of one moment.
- Roots are computed in steps. A statement that somebody waits for lacks those that take longer; the next one has them.

Keeps a statement of this node every `audit_interval_s`: as an event of a journal, which all nodes get.

Laws:
- Thread `statements/NODE` of the space `.shoal` has the statements of one node, in order and without gaps.
- A statement that was made and perhaps not kept, because the node stopped, is kept before the next one is made.

Answers who audits: statements, and the logs that prove them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any, Protocol

import msgspec

from shoal import values
from shoal.audit import statements
from shoal.audit.statements import THREADS, to_text
from shoal.cluster.operation import NO_TIP, PARTITIONS, LogEntry, Tip
from shoal.config import Config
from shoal.crdt.dot import ORIGIN_BYTES, Dot, Origin
from shoal.crdt.rows import successor
from shoal.errors import InvalidInput, ShoalError
from shoal.logs import events
from shoal.logs.lines import log
from shoal.names import RESERVED
from shoal.node.collection.entries import of_partition
from shoal.node.context import NodeContext
from shoal.node.handler import Answers
from shoal.node.partitions import Partition, Partitions
from shoal.node.snapshots.checking import mark_of, state_root
from shoal.node.transaction import Transaction
from shoal.node.turns import in_turns
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.requests import (
    AnyReply,
    Append,
    Durability,
    LeftOut,
    LoggedOperation,
    LogHead,
    LogPage,
    ReadLog,
    SetRetention,
    SignHeads,
    Statement,
    StateRoot,
)
from shoal.records import NamedTuple
from shoal.storage import cold, keys
from shoal.storage.interface import Storage

_ROOTS_WAIT_S = 5.0  # So long a request for a statement waits for roots.
_LOOKS_AT_ONCE = 8  # Partitions that are looked at before others get a turn.
_LEFT_MAX = 256
"""A partition with more entries of garbage has no root until they are swept; nor has one with more objects that are away."""


class Rooted(NamedTuple):
    """A partition's root, and the heads of its logs at the same moment."""

    heads: list[LogHead]
    root: StateRoot


Roots = Mapping[int, Rooted]


class StateRoots:
    """The roots of this node's rows. `lacking`: the threads of a partition that lack data of a save, as prefixes of rows."""

    def __init__(self, context: NodeContext, *, lacking: Callable[[int], Collection[bytes]]) -> None:
        self._storage = context.storage.raw  # Stubs are of objects that are left out.
        self._partitions = context.partitions
        self._lacking = lacking
        self._environment = context.environment
        self._made: dict[int, Rooted] = {}  # The last one of each partition.
        self._making: asyncio.Task[None] | None = None

    async def stop(self) -> None:
        """Cancel what is under way. Stopping twice is allowed."""
        if self._making is not None:
            self._making.cancel()
            await asyncio.gather(self._making, return_exceptions=True)

    async def all_of(self, numbers: Iterable[int]) -> Roots:
        """The roots of these partitions, however long they take; without those that cannot be made now."""
        begun = self._begun(numbers)
        await self._make_all(begun)
        return self._covering(begun)

    async def soon_of(self, numbers: Iterable[int]) -> Roots:
        """The roots of these partitions that are made in a bounded time. The others are made meanwhile."""
        begun = self._begun(numbers)
        if self._making is None or self._making.done():
            self._making = asyncio.get_running_loop().create_task(self._make_all(begun))
        await asyncio.wait([self._making], timeout=_ROOTS_WAIT_S)
        return self._covering(begun)

    async def read_anew(self, without: Iterable[LeftOut]) -> Roots:
        """The roots of what these partitions have in storage now, as many as are made in a bounded time."""
        found: dict[int, Rooted] = {}
        with suppress(TimeoutError):
            async with asyncio.timeout(_ROOTS_WAIT_S):
                for each in without:
                    made = await self._make(each.partition, frozenset(each.objects))
                    if made is not None:
                        found[each.partition] = made
        return found

    def _begun(self, numbers: Iterable[int]) -> dict[int, list[LogHead]]:
        return {number: heads_of(self._partitions.load(number)) for number in numbers}

    def _covering(self, begun: Mapping[int, list[LogHead]]) -> Roots:
        """The roots of all that was there when somebody began to ask, or of more."""
        found: dict[int, Rooted] = {}
        for number, heads in begun.items():
            made = self._made.get(number)
            held = {} if made is None else {head.origin: head.sequence for head in made.heads}
            if made is not None and all(held.get(head.origin, 0) >= head.sequence for head in heads):
                found[number] = made
        return found

    def _is_current(self, number: int) -> bool:
        """Whether another root would be the same. What was swept since is no longer left out."""
        made, left = self._made.get(number), self._left(number)
        if made is None or left is None:
            return False
        return made.root.left == sorted(left) and made.heads == heads_of(self._partitions.load(number))

    async def _make_all(self, numbers: Iterable[int]) -> None:
        for nth, number in enumerate(numbers, 1):
            if nth % _LOOKS_AT_ONCE == 0:
                await self._environment.pause()
            if not self._is_current(number) and (made := await self._make(number)) is not None:
                self._made[number] = made

    async def _make(self, number: int, without: frozenset[bytes] = frozenset()) -> Rooted | None:
        """Compute a root; None if it cannot be: too much waits to be swept, the partition is replaced, or a row is damaged."""
        partition, left = self._partitions.load(number), self._left(number)
        if partition.closed or left is None:
            return None
        heads, tips, rows = heads_of(partition), dict(partition.tips), self._storage.snapshot()
        try:
            root = await in_turns(state_root(number, rows.scan, tips, left | without), self._environment.pause)
        except ShoalError:
            return None
        finally:
            rows.close()
        return Rooted(heads, root)

    def _left(self, number: int) -> frozenset[bytes] | None:
        """Marks of the objects whose rows may change without an operation; None if there are too many."""
        try:
            swept = of_partition(self._storage, number, _LEFT_MAX)
        except ShoalError:
            return None
        if swept is None:
            return None
        away = cold.objects(self._storage, number)
        if len(away) > _LEFT_MAX:
            return None
        return frozenset(map(mark_of, swept.union(self._lacking(number), away)))


class _Kept(msgspec.Struct, array_like=True, frozen=True):
    """The row of a node: its private key, and the last statement that it keeps."""

    seed: bytes
    last: Statement | None = None


class Signer:
    """Signs for one node."""

    def __init__(self, context: NodeContext, roots: StateRoots) -> None:
        self._storage = context.storage
        self._commit = context.commit
        self._partitions = context.partitions
        self._roots = roots
        self._incarnation = context.incarnation
        self._environment = context.environment
        self._told: dict[int, list[LogHead]] = {}  # What this process has stated in statements that are kept, by partition.

    async def stop(self) -> None:
        """Make no more roots. Stopping twice is allowed."""
        await self._roots.stop()

    @property
    def last(self) -> Statement | None:
        """The last statement that is kept, or is to be."""
        return self._read().last

    async def sign(self, without: Collection[LeftOut] = ()) -> Statement:
        """A statement on all that is durable now, which is not kept. See `SignHeads`.

        Raises:
            ReadOnly, StorageFull: storage failed.
        """
        numbers = self._holding()
        if without:
            roots = await self._roots.read_anew([each for each in without if each.partition in numbers])
        else:
            roots = await self._roots.soon_of(numbers)
        kept = self._read()
        heads = self._heads(numbers, roots)
        await self._commit.wait_durable(self._commit.written)
        return self._signed(kept, heads, roots, number=0)

    async def state(self) -> Statement | None:
        """The next statement to keep, on what has grown since the last one; None if nothing has.

        Raises:
            ReadOnly, StorageFull: storage failed.
        """
        moved = [number for number in self._holding() if self._told.get(number) != heads_of(self._partitions.load(number))]
        if not moved:
            return None
        roots = await self._roots.all_of(moved)
        kept = self._read()
        heads = self._heads(moved, roots)
        await self._commit.wait_durable(self._commit.written)
        found = self._signed(kept, heads, roots, number=1 if kept.last is None else kept.last.number + 1)
        self._write(_Kept(kept.seed, found))
        await self._commit.wait_durable(self._commit.written)
        self._told |= heads
        return found

    def _holding(self) -> list[int]:
        self._partitions.load_all()
        return sorted(self._partitions.vectors())

    def _heads(self, numbers: Iterable[int], roots: Roots) -> dict[int, list[LogHead]]:
        """The heads of partitions now, or when their root was made: a root is of nothing else."""
        return {
            number: roots[number].heads if number in roots else heads_of(self._partitions.load(number)) for number in numbers
        }

    def _signed(self, kept: _Kept, heads: Mapping[int, list[LogHead]], roots: Roots, *, number: int) -> Statement:
        current = self._incarnation.current
        return statements.signed(
            Statement(
                node=self._incarnation.node,
                number=number,
                time_ms=self._environment.now_ms(),
                previous=b"" if kept.last is None else statements.digest(kept.last),
                own=[] if current is None else [bytes(current)],
                heads=[head for each in heads.values() for head in each],
                key=b"",
                signature=b"",
                roots=[roots[each].root for each in sorted(roots)],
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


def heads_of(partition: Partition) -> list[LogHead]:
    """The last operations of its logs, also of retired origins of which the log still holds something."""
    retired = [(bytes(origin), found.tip) for origin, found in partition.retired.all() if found.is_logged]
    logs = sorted([*((bytes(origin), tip) for origin, tip in partition.tips.items()), *retired])
    return [LogHead(partition.number, origin, tip.sequence, tip.hlc, tip.chain) for origin, tip in logs]


class Write(Protocol):
    """Makes a write with the node's service."""

    def __call__(
        self, request: Any, bookmark: Bookmark, key: str | None, durability: Durability, /, *, stale: bool
    ) -> Awaitable[AnyReply]:
        """Serve a request (`Service.call`)."""
        ...


class Recorder:
    """The background task of one node; it does nothing if the interval is 0."""

    def __init__(self, context: NodeContext, signer: Signer, write: Write) -> None:
        self._signer = signer
        self._write = write
        self._upkeep = context.upkeep
        self._incarnation = context.incarnation
        self._interval_s = context.config.audit_interval_s
        self._keep_ms = int(context.config.audit_keep_s * 1000)
        self._kept: Statement | None = None
        self._is_bounded = False  # Whether the journal's retention is set.
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the task, on the running loop."""
        if self._interval_s:
            self._task = self._upkeep.begin(self._run(), "signing of statements")

    async def stop(self) -> None:
        """Cancel the task. Stopping twice is allowed."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._signer.stop()

    async def _run(self) -> None:
        while True:
            try:
                await self.record()
            except ShoalError as error:
                log(events.AUDIT_TROUBLE, reason=error.message)
            await asyncio.sleep(self._interval_s)

    async def record(self) -> None:
        """Keep a statement now, if anything has changed since the last one.

        Raises:
            ShoalError: it could not be kept. The next call tries again.
        """
        last = self._signer.last
        if last is not None and last != self._kept:
            await self._keep(last)
        found = await self._signer.state()
        if found is not None:
            await self._keep(found)

    async def _keep(self, statement: Statement) -> None:
        thread = THREADS + self._incarnation.node.hex()
        event = values.encode(to_text(statement), where="statement")
        append = Append(RESERVED, thread, event, key=f"statement-{statement.number}")
        await self._write(append, Bookmark(), None, "local", stale=True)
        self._kept = statement
        if not self._is_bounded:
            bound = SetRetention(RESERVED, thread, older_than_ms=self._keep_ms)
            await self._write(bound, Bookmark(), f"keep-{thread}-{self._keep_ms}", "local", stale=True)
            self._is_bounded = True


_ANSWER_BYTES = 1 << 20


class AuditReads:
    """Answers `SignHeads` and `ReadLog`."""

    def __init__(self, signer: Signer, storage: Storage, partitions: Partitions, *, config: Config) -> None:
        self._signer = signer
        self._storage = storage
        self._partitions = partitions
        self._config = config
        self.answers: Answers = {SignHeads: self._sign, ReadLog: self._log}

    async def _log(self, request: ReadLog, _bookmark: Bookmark) -> LogPage:
        if not 0 <= request.partition < PARTITIONS or len(request.origin) != ORIGIN_BYTES:
            raise InvalidInput(
                f"a log has a partition, 0 to {PARTITIONS - 1}, and an origin of {ORIGIN_BYTES} bytes. Nothing was read."
            )
        if request.after < 0 or request.limit < 1:
            raise InvalidInput("`after` is 0 or more, and `limit` is 1 or more. Nothing was read.")
        partition, origin = self._partitions.load(request.partition), Origin(request.origin)
        partition.check_open()
        tip, base = partition.tip(origin), partition.bases.get(origin, NO_TIP)
        if tip is NO_TIP and (retired := partition.retired.find(origin)) is not None:
            tip = base = retired.tip
            if retired.is_logged:
                stored = self._storage.get(keys.base(request.partition, origin))
                base = NO_TIP if stored is None else Tip.unpack(stored)
        return LogPage(
            base.sequence,
            base.chain if base.sequence else b"",
            tip.sequence,
            tip.chain if tip.sequence else b"",
            partition.retired.summary.forgotten_hlc,
            self._operations(request, origin),
        )

    def _operations(self, request: ReadLog, origin: Origin) -> list[LoggedOperation]:
        """As many as fit, at least one if there is any."""
        start = keys.log(request.partition, Dot(origin, request.after + 1))
        stop = successor(keys.log_of(request.partition, origin))
        found: list[LoggedOperation] = []
        size = 0
        for key, row in self._storage.scan(start, stop, limit=min(request.limit, self._config.page_items_max)):
            entry = LogEntry.unpack(row)
            size += len(row)
            if found and size > _ANSWER_BYTES:
                break
            found.append(LoggedOperation(keys.split_log(key)[1].sequence, entry.chain, entry.packed))
        return found

    async def _sign(self, request: SignHeads, _bookmark: Bookmark) -> Statement:
        if not all(0 <= each.partition < PARTITIONS for each in request.without):
            raise InvalidInput(f"a partition is a number from 0 to {PARTITIONS - 1}. Nothing was signed.")
        return await self._signer.sign(request.without)
