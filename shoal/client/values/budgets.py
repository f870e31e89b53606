"""Budgets, as handles."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.client.arguments import named
from shoal.client.connection import StoreConnection
from shoal.names import check_name
from shoal.protocol import requests
from shoal.protocol.requests import BudgetConflict, Durability, Holder


@dataclass(frozen=True, slots=True)
class Rights:
    """Which nodes may spend what is left, as the serving node knows it."""

    granted: int
    spent: int
    remaining: int  # granted − spent
    pool: int  # Not drawn yet.
    here: int  # What the node that was asked may spend alone.
    holders: tuple[Holder, ...]
    conflicts: tuple[BudgetConflict, ...]  # What does not count, for another amount has its key.


@named
class Budget:
    """An amount that is never overspent, though a spend needs no coordination: each node spends
    what it has the rights to.

    A node draws rights from what was granted, or gets them from another node, before it spends more than it has.
    """

    def __init__(self, connection: StoreConnection, space: str, name: str) -> None:
        self._connection = connection
        self.space = check_name("space", space)
        self.name = check_name("budget", name)

    def __repr__(self) -> str:
        return f"Budget({self.space!r}, {self.name!r})"

    async def grant(self, amount: int, *, key: str | None = None, durability: Durability | None = None) -> int:
        """Add to what may be spent, and return what is left. Of all grants with one `key`, one counts, whoever makes them.

        Raises:
            KeyReused: `key` came before with another amount.
        """
        request = requests.Grant(self.space, self.name, amount, key)
        reply = await self._connection.write(request, key=None, durability=durability)
        return reply.remaining

    async def spend(self, amount: int = 1, *, key: str | None = None, durability: Durability | None = None) -> int:
        """Spend, and return what is left. Of all spends with one `key`, one counts.

        A spend is as durable as any write: with "local" it survives a crash, with "quorum" the loss
        of a disk too. "memory" is taken for "local".

        Raises:
            BudgetExhausted: less is left than that.
            RightsElsewhere: as much is left, and this node could not get the rights to it.
            KeyReused: `key` came before with another amount.
        """
        request = requests.Spend(self.space, self.name, amount, key)
        reply = await self._connection.write(request, key=None, durability=durability)
        return reply.remaining

    async def remaining(self, *, stale: bool = False) -> int:
        """The amount that was granted and is not spent yet. `stale`: see `Store`."""
        return (await self.rights(stale=stale)).remaining

    async def rights(self, *, stale: bool = False) -> Rights:
        """Which nodes may spend what is left."""
        reply = await self._connection.read(requests.ReadBudget(self.space, self.name), stale=stale)
        return Rights(
            reply.granted,
            reply.spent,
            reply.remaining,
            reply.pool,
            reply.rights,
            tuple(reply.holders),
            tuple(reply.conflicts),
        )

    async def draw(self, amount: int, *, reclaim: str = "") -> int:
        """Get rights to `amount` for the node, if they are available, and return what it has: it
        can spend that much alone.

        `reclaim` is the origin of a holder whose data directory is lost for good, or set back: you know that
        it is not in use any more, and its rights come to this node. Openings of this node's own directory need no such word.

        Raises:
            NoQuorum: not every owner could be heard; nothing was drawn.
        """
        request = requests.DrawRights(self.space, self.name, amount, reclaimed=reclaim)
        reply = await self._connection.write(request, key=None, durability=None)
        return reply.rights

    async def release(self, amount: int, *, durability: Durability | None = None) -> int:
        """Return up to `amount` of the node's rights, so that others can draw them, and return what it has left."""
        request = requests.ReleaseRights(self.space, self.name, amount)
        reply = await self._connection.write(request, key=None, durability=durability)
        return reply.rights
