"""The handle of a budget."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.client.arguments import Deletable, named
from shoal.client.connection import StoreConnection
from shoal.names import check_name
from shoal.protocol import requests
from shoal.protocol.requests import BudgetConflict, BudgetPoint, Durability, Holder


@dataclass(frozen=True, slots=True)
class Rights:
    """How the remaining amount is shared among the nodes, as the serving node knows it."""

    granted: int
    spent: int
    remaining: int  # granted − spent
    pool: int  # The part that no node has drawn yet.
    here: int  # The part that the serving node may spend alone.
    holders: tuple[Holder, ...]
    conflicts: tuple[BudgetConflict, ...]  # Grants and spends that do not count, because another amount has their key.


@named
class Budget(Deletable):
    """An amount that is never overspent, although a spend needs no coordination: each node spends
    only the amount that it has rights to.

    A node draws rights from the granted amount, or gets them from another node, before it spends more than it has.
    """

    _deletion = requests.DeleteBudget

    def __init__(self, connection: StoreConnection, space: str, name: str) -> None:
        self._connection = connection
        self.space = check_name("space", space)
        self.name = check_name("budget", name)

    def __repr__(self) -> str:
        return f"Budget({self.space!r}, {self.name!r})"

    async def grant(self, amount: int, *, key: str | None = None, durability: Durability | None = None) -> int:
        """Add to the amount that may be spent, once for each `key` as long as the budget exists, and return what is left.

        Raises:
            KeyReused: `key` was used with another amount.
        """
        request = grant_request(self.space, self.name, amount, key=key)
        reply = await self._connection.write(request, key=None, durability=durability)
        return reply.remaining

    async def spend(self, amount: int = 1, *, key: str | None = None, durability: Durability | None = None) -> int:
        """Spend, once for each `key` as long as the budget exists, and return the amount left.

        A spend is as durable as any write: with "local" it survives a crash, with "quorum" also the loss
        of a disk. "memory" means "local" here.

        Raises:
            BudgetExhausted: less than the amount is left.
            RightsElsewhere: enough is left, but this node could not get the rights to it.
            KeyReused: `key` was used with another amount.
        """
        request = spend_request(self.space, self.name, amount, key=key)
        reply = await self._connection.write(request, key=None, durability=durability)
        return reply.remaining

    async def remaining(self, *, stale: bool = False) -> int:
        """The amount that was granted and is not spent yet. `stale`: see `Store`."""
        return (await self.rights(stale=stale)).remaining

    async def rights(self, *, stale: bool = False) -> Rights:
        """How the remaining amount is shared among the nodes."""
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

    async def course(self, *, stale: bool = False) -> list[BudgetPoint]:
        """Tell how much was granted and spent over time, as the serving node saw it: the oldest first, the last of now.

        A node notes a point in each minute in which the budget changed, and keeps some hundred.
        """
        reply = await self._connection.read(requests.ReadBudgetCourse(self.space, self.name), stale=stale)
        return reply.points

    async def draw(self, amount: int, *, reclaim: str = "") -> int:
        """Get rights to `amount` for the node, if they are available, and return the rights that it
        has: it can spend that much alone.

        `reclaim` is the origin of a holder whose data directory is lost for good, or was restored from a backup: its
        rights move to this node. Only pass it if you know that it is not in use any more. Past openings of this node's
        own directory need no `reclaim`. What removed nodes had is in one account; its origin is `"f" * 32`.

        Raises:
            NoQuorum: not every owner could be asked; nothing was drawn.
        """
        request = requests.DrawRights(self.space, self.name, amount, reclaimed=reclaim)
        reply = await self._connection.write(request, key=None, durability=None)
        return reply.rights

    async def release(self, amount: int, *, durability: Durability | None = None) -> int:
        """Give up to `amount` of the node's rights back, so that others can draw them, and return the rights it has left."""
        request = requests.ReleaseRights(self.space, self.name, amount)
        reply = await self._connection.write(request, key=None, durability=durability)
        return reply.rights


def grant_request(space: str, name: str, amount: int, *, key: str | None = None) -> requests.Grant:
    """The request that adds to what may be spent."""
    return requests.Grant(space, name, amount, key)


def spend_request(space: str, name: str, amount: int = 1, *, key: str | None = None) -> requests.Spend:
    """The request that spends."""
    return requests.Spend(space, name, amount, key)
