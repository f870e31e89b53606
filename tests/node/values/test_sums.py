"""The remembered sums of maps' counters: what their adds say, without reading them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import product
from random import Random

import pytest

from shoal.kinds.map import handler as sums
from shoal.kinds.map import state as ormap
from shoal.node.handler import Target
from shoal.node.transaction import ObjectRows, Transaction
from shoal.protocol.requests import AddEntry, ReadMap, RemoveEntry
from shoal.protocol.session import Session
from shoal.storage import keys
from shoal.storage.interface import MemoryStorage
from shoal.storage.keys import Kind
from simulation.world.fleet import Fleet, Member
from tests.node.conftest import Opener

MAP = Target(Kind.MAP, "crew", "m")


class CountedStorage(MemoryStorage):
    """Counts the rows that are scanned."""

    scanned = 0

    def scan(
        self, start: bytes, stop: bytes | None, /, *, reverse: bool = False, limit: int | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        for row in super().scan(start, stop, reverse=reverse, limit=limit):
            self.scanned += 1
            yield row


async def count(session: Session, key: str = "k") -> int | None:
    found = await session.call(ReadMap("crew", "m", keys=[key]))
    return found.entries[0].count if found.entries else None


async def add(session: Session, number: int, *, key: str = "k", amount: int = 1) -> None:
    await session.call(AddEntry("crew", "m", key, amount), key=f"add-{number}", durability="memory")


def check(member: Member, key: str) -> None:
    """What is remembered, or read now, is what the adds say, in one step."""
    rows = ObjectRows(Transaction(member.storage), keys.object_rows(MAP.partition, *MAP))
    assert member.node._database._kinds.maps.sums.value(rows, MAP, key) == ormap.value(rows, key)


@pytest.mark.answers("reading-a-counter-of-a-map-adds-up-all")
async def test_a_read_after_twice_as_many_adds_reads_as_many_rows(open_bench: Opener) -> None:
    storage = CountedStorage()
    session = open_bench(storage).node.session()
    scanned: list[int] = []
    number = 0
    for total in (200, 400):
        while number < total:
            await add(session, number)
            number += 1
        await count(session)
        await add(session, number)
        number += 1
        storage.scanned = 0
        assert await count(session) == number
        scanned.append(storage.scanned)
    assert scanned[0] == scanned[1] < 10


async def test_remembered_sums_are_bounded(open_bench: Opener) -> None:
    bench = open_bench(map_sums_max=3)
    session = bench.node.session()
    for number in range(40 * 6):
        await add(session, number, key=f"k{number % 6}")
    assert [await count(session, f"k{n % 6}") for n in range(12)] == [40] * 12
    assert len(bench.node._database._kinds.maps.sums) == 3


@pytest.mark.answers("reading-a-counter-of-a-map-adds-up-all")
@pytest.mark.parametrize("seed", range(4))
async def test_a_counter_reads_as_its_adds_say_whatever_happened_to_it(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums, "_ADDS_MIN", 1)
    random = Random(seed)
    async with Fleet(seed=seed + 1) as fleet:
        sessions = {name: fleet[name].node.session() for name in "abc"}
        requests: list[tuple[str, int, int]] = []
        for number in range(250):
            name = random.choice("abc")
            key = random.choice("xy")
            match random.randrange(8):
                case 0 | 1 | 2:
                    requests.append((key, number, random.randrange(1, 100)))
                    await add(sessions[name], number, key=key, amount=requests[-1][2])
                case 3 if requests:
                    # The same request at another node, maybe before it has heard of the first one.
                    key, again, amount = random.choice(requests[-3:])
                    await add(sessions[name], again, key=key, amount=amount)
                case 4:
                    await sessions[name].call(AddEntry("crew", "m", key, 5), durability="memory")
                case 5 if random.randrange(4) == 0:
                    await sessions[name].call(RemoveEntry("crew", "m", key), durability="memory")
                case 6:
                    await asyncio.sleep(0.002)
                case _:
                    check(fleet[name], key)
        await fleet.converged()
        for name, key in product("abc", "xy"):
            check(fleet[name], key)


def test_a_sum_moves_once_its_write_is_made() -> None:
    known, transaction = sums.Sums(10), Transaction(MemoryStorage())
    known._known[MAP, "k"] = 1
    known.add(transaction, MAP, "k", 5)
    assert known._known[MAP, "k"] == 1, "the write may still fail"
    for then in transaction._written:
        then()
    assert known._known[MAP, "k"] == 6
