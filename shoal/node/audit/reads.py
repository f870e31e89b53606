"""Answers who audits: statements, and the logs that prove them."""

from __future__ import annotations

from shoal.cluster.operation import NO_TIP, PARTITIONS, LogEntry, Tip
from shoal.config import Config
from shoal.crdt.dot import ORIGIN_BYTES, Dot, Origin
from shoal.crdt.rows import successor
from shoal.errors import InvalidInput
from shoal.node.audit.signer import Signer
from shoal.node.handler import Answers
from shoal.node.partitions import Partitions
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.requests import LoggedOperation, LogPage, ReadLog, SignHeads, Statement
from shoal.storage import keys
from shoal.storage.interface import Storage

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
