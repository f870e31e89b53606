"""The record of a crew in the store: the state of the thread `shoal-crew` of its space, changed under that thread's lease.

Laws:
- Changes are linearizable: each is made on the state that the one before has left, and none is lost. A holder of the lease
  catches up with a quorum before it reads, and its saves are fenced and held by a quorum.
- Of concurrent heads the one with the greatest fencing number counts: another was saved by a holder that was told that it
  may have failed. The next change ends the fork.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable

from shoal.client.connection import reread
from shoal.client.store import Space, Store
from shoal.crew.declaration import CrewRecord, from_channels, to_channels
from shoal.errors import Forbidden, LeaseLost, NoQuorum, NotFound
from shoal.kinds.lease.handle.leases import Lease
from shoal.kinds.step.flows import catch_up
from shoal.kinds.thread.flows.checkpoints import Checkpoint, encode_channels, encode_metadata
from shoal.kinds.thread.handle.thread import Thread
from shoal.protocol.requests import NO_HEAD, Save

CREW_CHANGE_S = 30.0  # How long a change of a crew's record waits for others.

THREAD = "shoal-crew"
Alter = Callable[[CrewRecord], CrewRecord | Awaitable[CrewRecord]]

_LEASE_S = 10.0  # A change takes a few milliseconds; this is for one whose machine dies meanwhile.
_KEPT = 64  # Checkpoints of the record: its history.
_CHANGES_MAX = 5  # A change whose lease was lost meanwhile is made so often.
_FENCE, _CHANGE = "fence", "change"


class Record:
    """The record of one crew, as one machine or command reads and changes it. `holder` is its name, for people."""

    def __init__(self, store: Store, space: Space, *, holder: str) -> None:
        self._space = space
        self._connection = store.connection
        self._holder = holder
        self._signs = True  # Whether its writes name their authors; a token may forbid it.
        self._turn = asyncio.Lock()  # One change at a time of this process; others wait for the lease.

    def author_of(self, agent: str) -> str:
        """The author that an agent's writes name: the agent, or nobody if the store's token may not name it."""
        return agent if self._signs else ""

    async def read(self) -> CrewRecord:
        """The record as the serving node holds it."""
        return (await self._newest(self._thread()))[0]

    async def settled(self) -> CrewRecord:
        """The record with each change that was made before.

        Raises:
            NoQuorum: too few nodes can be reached to know it.
        """
        missing = await catch_up(self._connection, self._space.name, THREAD)
        if missing:
            raise NoQuorum(f"the record of the crew cannot be read: {missing}. Nothing was written. Try again.")
        return await self.read()

    async def change(self, alter: Alter) -> CrewRecord:
        """Change the record. If `alter` raises, or returns an equal record, nothing is written.

        Raises:
            LeaseHeld: others have been changing it for `CREW_CHANGE_S`.
            ShoalError: no quorum can be reached, or the outcome is unknown. Changing it again does no harm.
        """
        self._connection.check_home()
        for nth in range(_CHANGES_MAX):
            try:
                return await self._change(alter)
            except LeaseLost:  # This process stood still, or its node.
                if nth + 1 == _CHANGES_MAX:
                    raise
        raise AssertionError

    async def _change(self, alter: Alter) -> CrewRecord:
        wait_s = CREW_CHANGE_S
        async with self._turn, self._thread().lease(ttl=_LEASE_S, wait=wait_s, holder=self._holder) as lease:
            try:
                return await self._changed(alter, lease)
            except Forbidden as error:
                if not self._signs or error.detail.get("action") != "impersonate":
                    raise
                self._signs = False
                return await self._changed(alter, lease)

    async def _changed(self, alter: Alter, lease: Lease) -> CrewRecord:
        thread = self._thread()
        record, found = await self._newest(thread)
        outcome = alter(record)
        altered = await outcome if inspect.isawaitable(outcome) else outcome
        if altered != record or found is None or found.forked:
            number = 1 if found is None else found.metadata.get(_CHANGE, 0) + 1
            request = Save(
                self._space.name,
                THREAD,
                encode_channels(to_channels(altered)),
                encode_metadata({"by": self._holder, _FENCE: lease.fence, _CHANGE: number}),
                parent=NO_HEAD if found is None else found.id,
                merged=[] if found is None else [head for head in found.heads if head != found.id],
                author=self.author_of(self._holder),
            )
            await self._connection.write(request, key=None, durability=None)
            if number % _KEPT == 0:
                await thread.prune(keep_last=_KEPT)
        return altered

    def follow(self) -> AsyncGenerator[CrewRecord, None]:
        """Yield the record as the serving node holds it, and each change of it.

        Raises:
            ShoalError: no node could be reached for `request_timeout_s`.
        """
        known: CrewRecord | None = None

        async def read() -> AsyncGenerator[CrewRecord, None]:
            nonlocal known
            found = await self.read()
            if found != known:
                known = found
                yield found

        return reread(self._connection, self._space.name, THREAD, "save", read)

    def _thread(self) -> Thread:
        return self._space.thread(THREAD)

    async def _newest(self, thread: Thread) -> tuple[CrewRecord, Checkpoint | None]:
        try:
            found = await thread.load()
        except NotFound:
            return CrewRecord(), None
        if found.forked:
            heads = [found, *[await thread.load(head) for head in found.heads if head != found.id]]
            found = max(heads, key=lambda head: (head.metadata.get(_FENCE, 0), head.id))
        return from_channels(found.state, space=self._space.name), found
