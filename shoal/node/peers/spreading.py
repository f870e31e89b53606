"""Rights to spend are spread ahead of need, in the background: `Rights.spread` of each budget that changed.

Laws:
- A look takes a bounded number of budgets, `rights_spread_s` after the last one. While no budget is due there is no task.
- A budget is due after a change of it, whoever made it, and while it waits for an owner that is away. At the start
  those are due of which an earlier incarnation of this directory has rights.
- What cannot be done now is left: spends do without it, and the next change makes the budget due again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice

from shoal.config import Config
from shoal.errors import ShoalError
from shoal.node.database import Database
from shoal.node.peers.rights import Rights
from shoal.node.replicas import Replicas
from shoal.node.target import Target
from shoal.storage.keys import Kind


class Spreading:
    def __init__(self, database: Database, rights: Rights, *, replicas: Replicas, config: Config) -> None:
        self._database = database
        self._rights = rights
        self._replicas = replicas
        self._config = config
        self._due: dict[Target, None] = {}  # In the order in which they changed; at most `rights_due_max`.
        self._left: Iterator[Target] = iter(())  # By earlier openings.
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    def start(self) -> None:
        """Begin with what earlier openings left, on the running loop. A store without peers has nothing to spread."""
        if self._replicas.size > 1:
            self._database.budgets.on_change = self._changed
            self._left = self._database.catalog.all_of(Kind.BUDGET)
            self._stir()

    async def stop(self) -> None:
        """Stopping twice is allowed."""
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
        """Let some budgets be due of which earlier openings have rights; whether there may be more."""
        most = self._config.rights_spread_max
        with suppress(ShoalError):  # What is damaged is for those who ask for it.
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
            with suppress(ShoalError):
                if not await self._rights.spread(target):
                    self._due[target] = None
            await asyncio.sleep(0)
