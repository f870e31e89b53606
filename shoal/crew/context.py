"""The context that an agent's function gets."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from copy import deepcopy
from typing import Any, Unpack

from shoal.client.arguments import named
from shoal.client.store import Space
from shoal.client.waiting import waiting
from shoal.crew.declaration import Declared, parted
from shoal.crew.seat import Seat
from shoal.errors import NotFound
from shoal.kinds.lease.handle.leases import Lease
from shoal.kinds.step.flows.steps import StepRecord
from shoal.kinds.step.handle.resume import Resumption
from shoal.kinds.thread.flows.checkpoint import Checkpoint
from shoal.kinds.thread.handle.saves import SaveOptions
from shoal.kinds.thread.handle.thread import Thread
from shoal.kinds.worklist.handle.inbox import Inbox


@named
class CrewContext:
    """One run of an agent: its thread under its lease, and where it continues.

    When `draining` is set, the agent is to go on elsewhere, or to end: the function is cancelled after its next save, or when
    the grace period is over. It may return before; then it is started again elsewhere, at its last checkpoint.
    """

    def __init__(
        self, name: str, declared: Declared, *, machine: str, space: Space, thread: Thread, seat: Seat, resumption: Resumption
    ) -> None:
        self.name: str = name
        """Its name, as in "researcher-3"; its thread has the same."""
        self.agent: str = parted(name)[0]
        self.number: int = parted(name)[1]
        """From 1."""
        self.version: int = declared.version
        self.machine: str = machine
        self.space: Space = space
        self.thread: Thread = thread
        self.inbox: Inbox = thread.inbox
        self.lease: Lease = seat.lease
        """The lease of its thread. While the function waits it is given back; afterwards it has a new fencing number."""
        self.open_steps: tuple[StepRecord, ...] = resumption.open
        """Steps that an earlier run has begun and not ended: they may have happened."""
        self.draining: asyncio.Event = asyncio.Event()
        self._params = declared.params
        self._checkpoint = resumption.checkpoint
        self._is_unseen = False  # Whether the checkpoint is another's, and the function has not looked at it;
        self._bases = thread._checkout.bases
        self._position = self._bases.position("main")  # then where the handle was when it was found.

    def __repr__(self) -> str:
        return f"CrewContext({self.name!r}, machine={self.machine!r}, fence={self.lease.fence})"

    @property
    def params(self) -> dict[str, Any]:
        """The parameters that are declared, as a copy."""
        return deepcopy(self._params)

    @property
    def state(self) -> dict[str, Any]:
        """The newest state as far as this run knows it; empty if there was none. Decoded again at each access.

        It is the state of the last checkpoint when this run began, then what `checkpoint` has saved, and after a wait what
        others have saved meanwhile. Saves of `thread` itself are not in it until then. Once the function has looked at what
        others have saved, its next save builds on that; before, it raises `HeadMoved`.
        """
        if self._checkpoint is None:
            return {}
        if self._is_unseen:
            self._is_unseen = False
            if self._bases.position("main") == self._position:
                self._bases.move("main", self._checkpoint.id)
        return self._checkpoint.state

    async def checkpoint(self, state: Mapping[str, Any], **options: Unpack[SaveOptions]) -> Checkpoint:
        """Save the state. If the agent is to go on elsewhere, the function is cancelled here. The options are those of `save`.

        Raises:
            LeaseLost: another machine may drive the agent by now. Nothing was written.
        """
        saved = await self.thread.save(state, **options)
        if saved.branch == "main":
            self._checkpoint, self._is_unseen = saved, False
        await asyncio.sleep(0)  # A cancellation arrives here.
        return saved

    def waiting(self) -> AbstractAsyncContextManager[None]:
        """`async with ctx.waiting():` the function waits in the block: for a timer, a task, or anything outside of the store.

        If that lasts longer than `crew_linger_s`, the lease is given back, so that people can correct the state, and is taken
        again at the end of the block. Waits of the store do so by themselves.
        """
        return waiting()

    async def _look(self) -> None:
        """A wait is over in which others could save."""
        try:
            newest: Checkpoint | None = await self.space.thread(self.name).load()
        except NotFound:
            newest = None
        known = None if self._checkpoint is None else self._checkpoint.id
        if newest is not None and newest.id != known:
            self._checkpoint, self._is_unseen, self._position = newest, True, self._bases.position("main")
