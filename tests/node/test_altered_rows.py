"""A disk altered a row that a start reads: the node starts, or says what to do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from unittest.mock import ANY

import msgspec
import pytest

from shoal.cluster.membership import epochs
from shoal.config import Config
from shoal.crdt import deletion
from shoal.crdt.dot import COUNTER_BITS, HORIZON, ORIGIN_BYTES, Origin, VersionVector
from shoal.errors import StoreCorrupt
from shoal.node.collection.entries import pack, unpack
from shoal.node.node import Node
from shoal.node.retired import Summary
from shoal.storage import keys
from shoal.storage.interface import MemoryStorage
from simulation.world.environment import SimulatedEnvironment
from tests.node.snapshots.conftest import NUMBER, SPACE, Filled
from tests.support.pacing import LOOK_S

Rows = dict[bytes, bytes]

_OTHER = b"o" * ORIGIN_BYTES
_VECTOR = VersionVector({Origin(_OTHER): 3}).pack()
_REFUSING = (keys.meta("members"), keys.meta("once/"), keys.VECTOR, keys.RETIRED)
"""What a node must know of itself: who the members are, and what it holds."""


async def filled() -> Rows:
    """The rows of a node alone, with something to sweep."""
    made = Filled(1)
    await made.fill()
    await made.space.map("facts").delete()
    found = made.rows()
    await made.node.stop()
    return found


@pytest.fixture
async def rows() -> Rows:
    """Those of a node among peers, with all that a start reads."""
    found = await filled()
    assert {keys.GARBAGE, keys.LOG, keys.OBJECT, keys.STATUS} <= {key[:1] for key in found}
    assert keys.meta("erasing") in found
    origin = next(Origin(key[3:]) for key in found if key[:1] == keys.VECTOR)
    record = msgspec.structs.replace(epochs.founded(["n1:7400", "n2:7400"]), epoch=1)
    place = NUMBER.to_bytes(2, "big")
    return found | {
        keys.base(NUMBER, origin): found[keys.vector(NUMBER, origin)],
        keys.retired(NUMBER, HORIZON): Summary(5, floor=VersionVector({Origin(_OTHER): 1})).pack(),
        keys.meta("members"): epochs.encode(record),
        keys.meta("member"): b"\x01",
        keys.meta("restored"): b"n2:7400",
        keys.meta("originals"): _OTHER,
        keys.meta("past"): _OTHER,
        keys.meta("once/") + place: _VECTOR,
        keys.meta("marked/") + _OTHER: b"n2:7400",
        keys.meta("lost/") + _OTHER: b"n3:7400",
        keys.meta("mark/") + _OTHER + place + _OTHER: (3).to_bytes(8, "big"),
        keys.meta("expiring"): b"K" + place,
    }


def altered(value: bytes) -> Iterator[bytes]:
    """Rows that a disk may give instead of this one."""
    yield value[:-1] + bytes([value[-1] ^ 1]) if value else b"\x01"
    yield bytes([value[0] ^ 0x80]) + value[1:] if value else b"\xff"
    yield b""
    yield value[: len(value) // 2]


async def start(rows: Rows, **config: str | int) -> list[str]:
    """Start a node on these rows; returns the tasks that an error ended."""
    storage = MemoryStorage(rows, identity=b"disk 1")
    node = Node(storage, config=msgspec.convert(config, Config), environment=SimulatedEnvironment(2).environment)
    tasks = asyncio.all_tasks()
    for _ in range(20):
        await asyncio.sleep(0)
    ended = [repr(task) for task in tasks if task.done() and not task.cancelled() and task.exception() is not None]
    await node.stop()
    return ended


@pytest.mark.parametrize("config", [{}, {"advertise": "n1:7400", "join": "n2:7400"}], ids=["alone", "with peers"])
async def test_a_node_starts_whatever_row_a_disk_altered_or_says_what_to_do(rows: Rows, config: dict[str, str]) -> None:
    refused: dict[bytes, str] = {}
    ended: dict[tuple[bytes, bytes], list[str]] = {}
    for key, value in rows.items():
        for other in altered(value):
            try:
                ended[key, other] = await start(rows | {key: other}, **config)
            except StoreCorrupt as error:
                refused[next((row for row in _REFUSING if key.startswith(row)), key)] = error.message
    assert [key for key, tasks in ended.items() if tasks] == []
    assert refused.keys() == (set(_REFUSING) if config else {keys.meta("once/"), keys.VECTOR})
    assert all("ove the directory aside" in message or "move it aside" in message for message in refused.values())


async def test_a_damaged_list_of_members_that_seeds_found_is_named(rows: Rows) -> None:
    del rows[keys.meta("members")]
    with pytest.raises(StoreCorrupt, match="Move the directory aside"):
        await start(rows | {keys.meta("founding"): b"\xc1"}, advertise="n1:7400", join="n2:7400", cluster_size=2)


async def test_an_entry_of_garbage_that_nothing_made_holds_up_no_others() -> None:
    rows = await filled()
    [entry] = [key for key in rows if key[:1] == keys.GARBAGE]
    another = entry[:-1] + b"\x01"
    again = Filled(2, MemoryStorage(rows | {entry: b"\xc1", another: rows[entry]}, identity=b"disk 1"))
    garbage = again.node._database.garbage
    async with asyncio.timeout(10):
        while garbage.count(2) > 1 or not garbage.waits_for:
            await asyncio.sleep(LOOK_S)
    assert again.storage.get(another) == rows[entry]
    assert garbage.waits_for == ["a repair of what a disk altered in the queue of garbage"]
    await again.node.stop()


@pytest.mark.parametrize("is_logged", [True, False], ids=["in the log", "left the log"])
async def test_an_altered_entry_of_garbage_deletes_nothing_else(*, is_logged: bool) -> None:
    """It names the current generation of another object. While its operation is in the log, the right one is swept."""
    rows = await filled()
    [entry] = [key for key in rows if key[:1] == keys.GARBAGE]
    goal = keys.object_rows(NUMBER, keys.Kind.REGISTER, SPACE, "goal")
    dead = keys.object_rows(NUMBER, keys.Kind.MAP, SPACE, "facts")
    altered = msgspec.structs.replace(unpack(rows[entry]), kind=int(keys.Kind.REGISTER), name="goal")
    kept = {key: value for key, value in rows.items() if is_logged or key[:1] != keys.LOG}
    if not is_logged:
        kept |= {keys.BASE + key[1:]: value for key, value in rows.items() if key[:1] == keys.VECTOR}
    again = Filled(2, MemoryStorage(kept | {entry: pack(altered)}, identity=b"disk 1"))
    garbage = again.node._database.garbage
    async with asyncio.timeout(10):
        while garbage.count(1) if is_logged else not garbage.waits_for:
            await asyncio.sleep(LOOK_S)
    left = again.rows()
    assert {key for key in left if key.startswith(goal)} == {key for key in rows if key.startswith(goal)}
    assert [key for key in left if key.startswith(dead)] == ([dead + deletion.ROW] if is_logged else ANY)
    await again.node.stop()


async def test_an_altered_note_of_what_to_erase_has_everything_erased() -> None:
    rows = await filled()
    again = Filled(2, MemoryStorage(rows | {keys.meta("erasing"): b""}, identity=b"disk 1"))
    mark = again.node._database.erasure._mark
    assert mark is not None
    assert not mark.passed
    assert mark.until >= again.simulated.now_ms << COUNTER_BITS
    await again.node.stop()
