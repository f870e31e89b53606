"""Spread rights to spend ahead of need, in the background: `Rights.spread` of each budget that changed.

Laws:
- A look takes a bounded number of budgets, `rights_spread_s` after the last look. While no budget is due there is no task.
- A budget is due after any node's change of it, and while it waits for an owner that is away. At the start the budgets
  are due of which an earlier incarnation of this directory has rights.
- If spreading fails, it is dropped: spends work without it, and the next change makes the budget due again. Only what must be
  put back is tried again until it is, because no later change need come, and the pool is short of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice

from shoal.config import Config
from shoal.errors import ShoalError
from shoal.kinds.budget.peers.rights import Rights
from shoal.node.database import Database
from shoal.node.replicas import Replicas
from shoal.node.target import Target
from shoal.storage.keys import Kind


class Spreading:
    """The background task that spreads rights."""

    def __init__(self, database: Database, rights: Rights, *, replicas: Replicas, config: Config) -> None:
        self._database = database
        self._rights = rights
        self._replicas = replicas
        self._config = config
        self._due: dict[Target, None] = {}  # In the order in which they changed; at most `rights_due_max`.
        self._left: Iterator[Target] = iter(())  # Budgets in which earlier openings may have left rights.
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    def start(self) -> None:
        """Begin with the rights of earlier openings, on the running loop. A store without peers has nothing to spread."""
        if self._replicas.size > 1:
            self._database.budgets.on_change = self._changed
            self._left = self._database.catalog.all_of(Kind.BUDGET)
            self._stir()

    async def stop(self) -> None:
        """Cancel the task. Stopping twice is allowed."""
        self._stopped = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _changed(self, target: Target) -> None:
        if len(self._due) < self._config.rights_due_max:
            self._due[target] = None
            self._stir()

    def _stir(self) -> None:
        if self._task is None and not self._stopped:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            while await self._find_left() or self._due:
                await asyncio.sleep(self._config.rights_spread_s)
                await self._look()
        finally:
            self._task = None

    async def _find_left(self) -> bool:
        """Make the next budgets due in which earlier openings have rights; True if there may be more."""
        most = self._config.rights_spread_max
        with suppress(ShoalError):  # A request for a damaged budget reports it.
            while some := list(islice(self._left, most)):
                found = [target for target in some if self._database.budgets.over(self._database.document(target).rows)]
                self._due.update(dict.fromkeys(found))
                if found:
                    return True
                await asyncio.sleep(0)
        return False

    async def _look(self) -> None:
        for target in list(islice(self._due, self._config.rights_spread_max)):
            del self._due[target]
            again = False
            with suppress(ShoalError):
                again = not await self._rights.spread(target)
            if again or self._rights.is_unsettled(target):
                self._due[target] = None
            await asyncio.sleep(0)
