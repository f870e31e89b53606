"""Rights to spend: how a node comes to have them.

Laws:
- Rights are drawn, from the pool or from an opening of this directory that is over, in two steps: the draw is written,
  and then every owner is heard. Of two that draw the same at least one sees the other, for each had written
  before it asked; whoever sees that too much was drawn puts it back. So what counts was drawn once.
- A directory that is an older copy of itself learns in the same way what it has forgotten, of every owner that holds it,
  before it spends anything. It never spends from an account that it finds: only from that of this opening.
- That nothing is left is said only once whoever is linked was heard: a grant may have been acknowledged elsewhere.
- Where owners cannot be reached nothing is drawn, and what was written of it is put back; rights that others
  have can be asked of any of them (`Owners.seek`), for a transfer is its giver's alone.

Why rights are those of openings, and why every owner is heard: docs/decisions/0024-rights-of-budgets.md.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from weakref import WeakValueDictionary

from shoal.crdt import budget
from shoal.errors import BudgetExhausted, NoQuorum, RightsElsewhere, ShoalError
from shoal.node.database import Database
from shoal.node.owners import Owners
from shoal.node.target import Target, target_of
from shoal.protocol import requests
from shoal.storage.commit import GroupCommit


class Rights:
    def __init__(self, database: Database, commit: GroupCommit, *, owners: Owners) -> None:
        self._database = database
        self._commit = commit
        self._owners = owners
        self._locks: WeakValueDictionary[Target, asyncio.Lock] = WeakValueDictionary()  # One draw of a budget at a time.

    async def provide(self, request: requests.AnyWrite) -> None:
        """Get rights to all that a request spends, as far as they can be had; who spends then finds out."""
        wanted: dict[Target, int] = {}
        for write in request.writes if isinstance(request, requests.Batch) else [request]:
            if isinstance(write, requests.Spend):
                target = target_of(write)
                wanted[target] = wanted.get(target, 0) + write.amount
        for target, amount in wanted.items():
            async with self._lock(target):
                await self._provide(target, amount)

    async def draw(self, request: requests.DrawRights) -> requests.Rights:
        """
        Raises:
            NoQuorum: not every owner can be heard; nothing was drawn.
        """
        target = target_of(request)
        async with self._lock(target):
            before = self._usable(target)
            await self._draw(target, request)
            return requests.Rights(self._usable(target) - before, self._usable(target))

    def explained(self, error: BudgetExhausted | RightsElsewhere) -> BudgetExhausted | RightsElsewhere:
        """The refusal of a spend, and who is away if that is why."""
        away = [member.name for member in self._owners.view().members if member.state == "unreachable"]
        if not away or isinstance(error, BudgetExhausted):
            return error
        who = f"{', '.join(away)} cannot be reached"
        text = f"{error.message} {who}: what is not drawn needs every owner, and what a node that is away has stays with it."
        return RightsElsewhere(text, **{**error.detail, "unreachable": away})

    async def _provide(self, target: Target, amount: int) -> None:
        if self._usable(target) >= amount:
            return  # Whoever waited for the same got enough.
        if budget.remaining(self._database.document(target).rows) < amount:
            await self._owners.heard(target.partition)  # More may have been granted elsewhere.
        if self._can_draw(target):
            shares = self._owners.size
            with suppress(NoQuorum):
                await self._draw(target, requests.DrawRights(target.space, target.name, amount, shares))
        lacking = amount - self._usable(target)
        if lacking > 0 and self._owners.size > 1:
            await self._commit.covered(self._database.issuer.introduce())
            await self._owners.seek(target, lacking, self._by_rights(target))

    async def _draw(self, target: Target, request: requests.DrawRights) -> None:
        await self._owners.reachable("all")
        issued = self._database.issue(request, None)
        try:
            await self._commit.covered(issued.number)
            await self._owners.current(target.partition, "all")
        except BaseException:
            with suppress(ShoalError):
                self._put_back(target)
            raise
        if self._database.budgets.sure(self._database.document(target).rows, target):
            await self._commit.covered(self._put_back(target))

    def _put_back(self, target: Target) -> int:
        return self._database.issue(requests.ReleaseRights(target.space, target.name, unsure=True), None).number

    def _can_draw(self, target: Target) -> bool:
        rows = self._database.document(target).rows
        return budget.pool(rows) > 0 or bool(self._database.budgets.over(rows))

    def _usable(self, target: Target) -> int:
        return self._database.budgets.usable(self._database.document(target).rows, target)

    def _by_rights(self, target: Target) -> dict[bytes, int]:
        """What each node is known to have."""
        found: dict[bytes, int] = {}
        for account in budget.accounts(self._database.document(target).rows):
            found[account.node] = found.get(account.node, 0) + account.rights
        return found

    def _lock(self, target: Target) -> asyncio.Lock:
        lock = self._locks.get(target)
        if lock is None:
            lock = self._locks[target] = asyncio.Lock()
        return lock
