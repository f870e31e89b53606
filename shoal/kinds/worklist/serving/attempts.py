"""Attempts that begin together: one operation, and one wait for copies, for all claims of a thread that were just granted.

A tie is decided by a lease of the step: the nodes of tied attempts take it one after another, and all but the last give
way. Without it all could withdraw.

Law: the outcome of each is what it would be alone. If they cannot begin together, each begins alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from shoal.cluster.partition import partition_of
from shoal.errors import ShoalError
from shoal.node.turns import Background
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.requests import AnyReply, AttemptBegun, Batch, BatchReply, BeginAttempt

_TOGETHER_MAX = 256  # Fewer than a batch may hold.

Write = Callable[[BeginAttempt | Batch, Bookmark], Awaitable[AnyReply]]


class _Gathered:
    def __init__(self) -> None:
        self.requests: list[BeginAttempt] = []
        self.shown = Bookmark()
        self.told: asyncio.Future[list[AnyReply]] = asyncio.get_running_loop().create_future()


class Attempts:
    """Notes attempts; `write` makes a write under claims, for a quorum."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._open: dict[tuple[str, str], _Gathered] = {}  # By space and thread: those that another attempt can join.
        self._beginning = Background()

    async def begin(self, request: BeginAttempt, bookmark: Bookmark) -> AttemptBegun:
        """Note an attempt.

        Raises:
            LeaseLost: its claim has ended.
            NoQuorum, OutcomeUnknown: as a write for a quorum.
        """
        place = request.space, request.thread
        gathered = self._open.get(place)
        if gathered is None or len(gathered.requests) >= _TOGETHER_MAX:
            gathered = self._open[place] = _Gathered()
            self._beginning.start(self._begun(place, gathered))
        nth = len(gathered.requests)
        gathered.requests.append(request)
        replies = await asyncio.shield(gathered.told)
        if not replies:
            reply = await self._write(request, bookmark)
        else:
            reply, partition = replies[nth], partition_of(request.space, request.thread)
            bookmark.note(partition, gathered.shown.vector(partition))
        assert isinstance(reply, AttemptBegun)
        return reply

    async def close(self) -> None:
        """End the work that is under way."""
        await self._beginning.close()

    async def _begun(self, place: tuple[str, str], gathered: _Gathered) -> None:
        replies: list[AnyReply] = []  # None: each begins alone.
        try:
            await asyncio.sleep(0)  # Others that ask in the same turn join.
            if self._open.get(place) is gathered:
                del self._open[place]
            if len(gathered.requests) > 1:
                reply = await self._write(Batch(list(gathered.requests)), gathered.shown)
                assert isinstance(reply, BatchReply)
                replies = [*reply.replies]
        except ShoalError:
            pass
        finally:
            if not gathered.told.done():
                gathered.told.set_result(replies)
