"""What an agent's function gets."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Unpack

from shoal.client.arguments import named
from shoal.client.leases import Lease
from shoal.client.store import Space
from shoal.client.thread.inbox import Inbox
from shoal.client.thread.resume import Resumption
from shoal.client.thread.saves import SaveOptions
from shoal.client.thread.thread import Thread
from shoal.crew.declaration import Declared, parted
from shoal.workflows.checkpoint import Checkpoint
from shoal.workflows.steps import StepRecord


@named
class CrewContext:
    """One run of an agent: its thread under its lease, and where it continues.

    When `draining` is set, the agent is to go on elsewhere, or to end: the function is cancelled after its next save, or when
    the grace period is over. It may return before; then it is started again elsewhere, at its last checkpoint.
    """

    def __init__(
        self, name: str, declared: Declared, *, machine: str, space: Space, thread: Thread, lease: Lease, resumption: Resumption
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
        self.lease: Lease = lease
        self.open_steps: tuple[StepRecord, ...] = resumption.open
        """Steps that an earlier run has begun and not ended: they may have happened."""
        self.draining: asyncio.Event = asyncio.Event()
        self._params = declared.params
        self._resumption = resumption

    def __repr__(self) -> str:
        return f"CrewContext({self.name!r}, machine={self.machine!r}, fence={self.lease.fence})"

    @property
    def params(self) -> dict[str, Any]:
        """The parameters that are declared, as a copy."""
        return deepcopy(self._params)

    @property
    def state(self) -> dict[str, Any]:
        """The state of the last checkpoint when this run began; empty if there was none. Decoded again at each access."""
        return self._resumption.state

    async def checkpoint(self, state: Mapping[str, Any], **options: Unpack[SaveOptions]) -> Checkpoint:
        """Save the state. If the agent is to go on elsewhere, the function is cancelled here. The options are those of `save`.

        Raises:
            LeaseLost: another machine may drive the agent by now. Nothing was written.
        """
        saved = await self.thread.save(state, **options)
        await asyncio.sleep(0)  # A cancellation arrives here.
        return saved
