"""Keeps a statement of this node every `audit_interval_s`: as an event of a journal, which all nodes get.

Laws:
- Thread `statements/NODE` of the space `.shoal` has the statements of one node, in order and without gaps.
- A statement that was made and perhaps not kept, because the node stopped, is kept before the next one is made.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import Any, Protocol

from shoal import values
from shoal.audit.statements import THREADS, to_text
from shoal.config import Config
from shoal.errors import ShoalError
from shoal.names import RESERVED
from shoal.node.audit.signer import Signer
from shoal.node.incarnation import Incarnation
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.requests import AnyReply, Append, Durability, SetRetention, Statement

_log = logging.getLogger("shoal.node")


class Write(Protocol):
    """Makes a write with the node's service."""

    def __call__(
        self, request: Any, bookmark: Bookmark, key: str | None, durability: Durability, /, *, stale: bool
    ) -> Awaitable[AnyReply]:
        """Serve a request (`Service.call`)."""
        ...


class Recorder:
    """The background task of one node; it does nothing if the interval is 0."""

    def __init__(self, signer: Signer, write: Write, *, incarnation: Incarnation, config: Config) -> None:
        self._signer = signer
        self._write = write
        self._incarnation = incarnation
        self._interval_s = config.audit_interval_s
        self._keep_ms = int(config.audit_keep_s * 1000)
        self._kept: Statement | None = None
        self._is_bounded = False  # Whether the journal's retention is set.
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the task, on the running loop."""
        if self._interval_s:
            self._task = asyncio.get_running_loop().create_task(self._run())

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
                _log.warning("no audit statement could be kept: %s", error)
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
