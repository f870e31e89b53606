"""Items on three real nodes that are cut off, lose power and sweep at once: in the end all hold the same, as promised."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from random import Random

import pytest

from shoal.errors import ItemChanged
from shoal.kinds.items.handle.items import Items
from shoal.node.verification.verify import verify
from shoal.protocol.requests import NO_ITEM
from simulation.world.fleet import Fleet

NAMES = "abc"
NAMESPACES = [("m",), ("m", "u1"), ("m", "u1", "deep"), ("m", "u2"), ("other",)]
KEYS = ["k1", "k2", "k3"]


class Crew:
    """Writes by dice through the nodes that are up, and keeps what nobody may take away."""

    def __init__(self, fleet: Fleet, random: Random) -> None:
        self._fleet = fleet
        self._random = random
        self.kept: dict[tuple[tuple[str, ...], str], int] = {}  # Items that are put once, and never deleted.
        self._number = 0

    async def act(self) -> None:
        random, items = self._random, self._items()
        namespace, key = random.choice(NAMESPACES), random.choice(KEYS)
        self._number += 1
        match random.randrange(9):
            case 0:
                await items.delete(namespace, key)
            case 1:
                await items.refresh(namespace, KEYS)
            case 2:
                await items.sweep(namespace[0])
            case 3:
                async with self._fleet[random.choice([*self._fleet.members])].store().space("crew").batch() as batch:
                    for _ in range(3):
                        batch.items.put(random.choice(NAMESPACES[:4]), random.choice(KEYS), self._number)
                    batch.items.delete(namespace if namespace[0] == "m" else ("m",), key)
            case 4:
                try:
                    await items.put(namespace, key, self._number, expect=random.choice([NO_ITEM, "0" * 32]))
                except ItemChanged as refused:
                    with suppress(ItemChanged):  # Another node's put may have arrived meanwhile.
                        await items.put(namespace, key, self._number, expect=str(refused.detail["version"]))
            case 5:
                name = (namespace, f"kept-{self._number}")
                await items.put(*name, self._number, idempotency_key=f"r{self._number}")
                if random.random() < 0.5:  # As if the answer had been lost: again, and elsewhere.
                    await self._items().put(*name, self._number, idempotency_key=f"r{self._number}")
                self.kept[name] = self._number
            case _:
                ttl = timedelta(seconds=random.randrange(1, 20)) if random.random() < 0.6 else None
                await items.put(namespace, key, self._number, ttl=ttl)

    def _items(self) -> Items:
        return self._fleet[self._random.choice([*self._fleet.members])].store().space("crew").items


async def trouble(fleet: Fleet, random: Random) -> None:
    name = random.choice(NAMES)
    match random.randrange(4):
        case 0:
            await fleet.isolate(name)
        case 1:
            for other in NAMES:
                fleet.link_all(other)
        case 2:
            left = await fleet.crash(name, keep=None if random.random() < 0.5 else 0)
            fleet.start(name, left)
        case _:
            for member in fleet.members.values():
                member.simulated.now_ms += random.randrange(8000)


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(4, 12))])
async def test_nodes_agree_once_they_are_healed_and_nothing_kept_is_gone(seed: int) -> None:
    random = Random(seed)
    async with Fleet(NAMES, seed=seed + 1, item_expiry_grace_s=2.0, items_expired_max=3) as fleet:
        crew = Crew(fleet, random)
        for _ in range(60):
            if random.random() < 0.2:
                await trouble(fleet, random)
            await crew.act()
        for name in NAMES:
            fleet.link_all(name)
        await fleet.converged()
        assert fleet.rows("a") == fleet.rows("b") == fleet.rows("c")
        for name in NAMES:
            # Folded again from the log in another order, the rows are the same.
            assert verify(fleet[name].storage, config=fleet[name].config).problems == []
            found = {
                (item.namespace, item.key): item for item in await fleet[name].store().space("crew").items.search(limit=1000)
            }
            assert {place: found[place].value for place in crew.kept if place in found} == crew.kept
            assert all(found[place].siblings == [] for place in crew.kept)
