"""An operator of a simulated cluster: what `shoal cluster drain|forget|replace|add` do, by a real client of other nodes.

Laws:
- What is refused, or not known to be done, is asked for again; until all is healed, and then as often as it takes.
- A node that shows an older epoch than operators have seen has not learnt of the newer one yet: what it shows is left out.
- A node that is to be added and holds data gets another empty disk, as the change asks for; but only if another node may have
  been behind. From members that know of the removal it gets nothing.
- A member that was removed comes back with an empty disk. So after the faults all nodes are members again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Literal

from shoal.client.connection import StoreConnection
from shoal.client.store import Store
from shoal.errors import ChangeUnderWay, InvalidInput, NoQuorum, NotAMember, ShoalError, Unreachable
from shoal.protocol.requests import MembersView
from simulation.world.client import Client

if TYPE_CHECKING:
    from simulation.world.cluster import SimulatedCluster
    from simulation.world.host import SimulatedNode

_LOOK_S = 0.3
_NOT_EMPTY = "holds data from before"
_PATIENCE_S = 60.0
"""After the faults, a change is done by then."""


class Operator:
    """Removes and adds the node of one host, as seen by the other nodes but those `apart`, which may be no members."""

    def __init__(
        self, cluster: SimulatedCluster, host: SimulatedNode, random: Random, *, apart: Collection[SimulatedNode] = ()
    ) -> None:
        others = [name for name, other in cluster.hosts.items() if other is not host and other not in apart]
        random.shuffle(others)
        client = Client(cluster, others, name=f"operator of {host.name}", random=random)
        self._store = Store(
            StoreConnection(client.session, client.config, "local", random.randbytes), close=client.session.close
        )
        self._cluster = cluster
        self._host = host

    async def disown(self) -> None:
        """Have the directories forgotten that the node lost; give up once all is healed."""
        while not self._cluster.is_healed:
            view = await self._look()
            lost = [] if view is None else [each.node for each in view.lost if each.name == self._host.address]
            if view is not None and not lost:
                return
            for directory in lost[:1]:
                await self._asked(partial(self._store.forget_member, directory))
            await asyncio.sleep(_LOOK_S)

    async def remove(self, how: Literal["drain", "forget"], *, by: SimulatedNode | None = None) -> bool:
        """Remove the node, maybe replaced `by` another one, and take its disk away. Returns whether that began in time."""
        address = self._host.address
        if how == "forget":
            self._host.kill()
            await self._host.gone()
            await asyncio.sleep(_LOOK_S)  # The others notice.
        is_asked = False

        async def change() -> MembersView:
            if by is not None:
                return await self._store.replace_member(address, by.address)
            return await (self._store.forget_member if how == "forget" else self._store.drain_member)(address)

        def is_gone(view: MembersView) -> bool:
            return not view.change and all(seat.name != address for seat in view.members)

        while not is_asked:
            view = await self._look()
            if view is not None and not view.change:
                if self._cluster.is_healed:
                    return False
                is_asked = await self._begun(change)
            await asyncio.sleep(_LOOK_S)
        await self._until(is_gone, "is not removed", change)
        if self._host.up:
            self._host.kill()
        await self._host.gone()
        self._host.disk.wipe()
        return True

    async def add(self) -> None:
        """Add the node, which has an empty disk."""
        address = self._host.address

        def is_member(view: MembersView) -> bool:
            return not view.change and any(seat.name == address and seat.part == "member" for seat in view.members)

        await self._until(is_member, "is not added", lambda: self._store.add_member(address))

    async def _until(
        self,
        is_so: Callable[[MembersView], bool],
        problem: str,
        also: Callable[[], Awaitable[MembersView]] | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        ends_at: float | None = None
        while True:
            view = await self._look()
            if view is not None and is_so(view):
                return
            if view is not None:
                await self._heed(view)
            if also is not None and (view is None or not view.change):
                await self._asked(also)
            if self._cluster.is_healed and ends_at is None:
                ends_at = loop.time() + _PATIENCE_S
            if ends_at is not None and loop.time() > ends_at:
                told = f"{self._host.name} {problem} by an operator, {_PATIENCE_S:g} s after all faults: {view}"
                self._cluster.problems.append(told)
                return
            await asyncio.sleep(_LOOK_S)

    async def _look(self) -> MembersView | None:
        """The members; None if that is not known now."""
        view = await self._asked(self._store.members)
        if view is None or view.epoch < self._cluster.epoch_seen:
            return None
        self._cluster.epoch_seen = view.epoch
        return view

    async def _heed(self, view: MembersView) -> None:
        """Do what a change waits for: a node may have got data, from a member that did not know yet that it was removed."""
        stuck = {seat.name for seat in view.members if _NOT_EMPTY in seat.progress} & self._cluster.unsure
        for host in self._cluster.hosts.values():
            if host.address in stuck and host.up and not host.stopping:
                host.kill()
                await host.gone()
                host.disk.wipe()
                if not host.up:
                    host.start()

    async def _begun(self, ask: Callable[[], Awaitable[MembersView]]) -> bool:
        """Whether a change may have begun."""
        try:
            await ask()
        except (InvalidInput, NoQuorum, ChangeUnderWay, NotAMember, Unreachable):
            return False
        except ShoalError as error:
            return error.written != "no"
        return True

    async def _asked(self, ask: Callable[[], Awaitable[MembersView]]) -> MembersView | None:
        """The answer; None if it was refused, or is not known."""
        with suppress(ShoalError):
            return await ask()
        return None
