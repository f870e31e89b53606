"""What is stored is computed again, and what an author could see is told."""

from __future__ import annotations

import asyncio

import pytest

from shoal.cluster.operation import partition_of
from shoal.errors import NotFound
from shoal.kinds.thread.state import dag
from shoal.protocol.bookmark import Bookmark
from shoal.storage import keys
from shoal.storage.interface import MemoryStorage
from tests.node.conftest import Bench, Opener

LARGE = [f"message {n} " * 40 for n in range(60)]


async def grown(bench: Bench, count: int = 5) -> list[str]:
    thread = bench.space.thread("a")
    return [(await thread.save({"m": LARGE[: 40 + 10 * n], "n": n})).id for n in range(count)]


def rows_of(bench: Bench, first: bytes) -> list[tuple[bytes, bytes]]:
    table = keys.object_rows(partition_of("crew", "a"), keys.Kind.THREAD, "crew", "a")
    return [(key, value) for key, value in bench.storage.scan(table, None) if key.startswith(table + first)]


async def test_a_sound_branch_is_said_to_be_sound(open_bench: Opener) -> None:
    bench = open_bench()
    ids = await grown(bench, 230)
    thread = bench.space.thread("a")
    assert (await thread.verify()).checkpoints == len(ids)
    assert (await thread.verify()).sound
    one = await thread.verify(ids[3])
    assert (one.checkpoints, one.sound) == (1, True)


class CountedStorage(MemoryStorage):
    reads = 0

    def get(self, key: bytes, /) -> bytes | None:
        self.reads += 1
        return super().get(key)


@pytest.mark.answers("verifying-a-growing-list-blocks-others")
async def test_verifying_twice_as_many_checkpoints_of_a_growing_list_reads_twice_as_many_rows(open_bench: Opener) -> None:
    storage = CountedStorage()
    thread = open_bench(storage).space.thread("a")
    reads: list[int] = []
    saved = 0
    for count in (300, 600):
        while saved < count:
            await thread.append("m", f"message {saved} " + "x" * 1000)
            saved += 1
        storage.reads = 0
        assert (await thread.verify()).checkpoints == count
        reads.append(storage.reads)
    assert reads[1] < 2.1 * reads[0], reads


@pytest.mark.answers("verifying-a-growing-list-blocks-others")
async def test_other_requests_get_their_turn_while_a_long_history_is_verified(open_bench: Opener) -> None:
    bench = open_bench()
    ids = await grown(bench, 200)
    verifying = asyncio.ensure_future(bench.space.thread("a").verify())
    turns = 0
    while not verifying.done():
        await asyncio.sleep(0)
        turns += 1
    assert (await verifying).checkpoints == len(ids)
    assert turns > len(ids) // 20


async def test_a_deletion_during_verification_is_no_damage(open_bench: Opener) -> None:
    bench = open_bench()
    await grown(bench, 200)
    verifying = asyncio.ensure_future(bench.space.thread("a").verify())
    for _ in range(4):
        await asyncio.sleep(0)
    assert not verifying.done()
    await bench.space.thread("a").delete()
    assert (await verifying).sound


async def test_a_damaged_chunk_is_told_by_checkpoint_and_channel(bench: Bench) -> None:
    ids = await grown(bench)
    [*_, (key, chunk)] = rows_of(bench, dag.CHUNK)
    bench.storage.write({key: chunk[:-1] + bytes([chunk[-1] ^ 1])})
    found = await bench.space.thread("a").verify()
    assert not found.sound
    assert found.checkpoints == len(ids)
    assert {damage.channel for damage in found.damage} == {"m"}
    assert {damage.checkpoint for damage in found.damage} <= set(ids)
    assert all("damaged" in damage.what for damage in found.damage)


async def test_a_missing_chunk_is_told_though_the_cache_has_the_value(bench: Bench) -> None:
    ids = await grown(bench)
    for key, _ in rows_of(bench, dag.CHUNK):
        bench.storage.write({key: None})
    assert (await bench.space.thread("a").load()).state["n"] == 4
    found = await bench.space.thread("a").verify()
    assert {damage.checkpoint for damage in found.damage} >= set(ids[1:])


async def test_a_record_that_was_changed_does_not_match_its_id(bench: Bench) -> None:
    ids = await grown(bench)
    for key, stored in rows_of(bench, dag.CHECKPOINT):
        if key.endswith(bytes.fromhex(ids[1])):
            bench.storage.write({key: stored.replace(b"main", b"mane")})
    found = await bench.space.thread("a").verify()
    assert [(damage.checkpoint, damage.channel) for damage in found.damage] == [(ids[1], "")]
    assert "id does not match" in found.damage[0].what


async def test_a_record_that_cannot_be_read_ends_the_line_and_is_told(bench: Bench) -> None:
    ids = await grown(bench)
    for key, stored in rows_of(bench, dag.CHECKPOINT):
        if key.endswith(bytes.fromhex(ids[1])):
            bench.storage.write({key: stored[:60]})
    found = await bench.space.thread("a").verify()
    assert (found.checkpoints, found.damage[-1].checkpoint, found.damage[-1].channel) == (4, ids[1], "")
    assert {damage.checkpoint for damage in found.damage} <= set(ids[1:])  # Whose values are described against it.


async def test_a_missing_object_cannot_be_verified(bench: Bench) -> None:
    await grown(bench, 1)
    with pytest.raises(NotFound):
        await bench.space.thread("a").verify("00" * 32)
    with pytest.raises(NotFound):
        await bench.space.thread("a").verify(branch="x")


async def test_why_tells_what_its_author_could_see(bench: Bench) -> None:
    thread = bench.space.thread("a", author="planner", dependencies={"openai": "1.2"})
    await bench.space.counter("tokens").add(1)
    first = await thread.save({"n": 0})
    await thread.journal.append("before")
    await thread.journal.append("just before")
    second = await thread.save({"n": 1}, metadata={"step": 1})
    await thread.journal.append("after")
    third = await thread.save({"n": 2})
    found = await bench.space.thread("a").why(second.id)
    assert (found.checkpoint.id, found.checkpoint.author, found.checkpoint.metadata) == (second.id, "planner", {"step": 1})
    assert [older.id for older in found.earlier] == [first.id]
    assert [event.event for event in found.events] == ["just before", "before"]
    assert found.setting == {"dependencies": {"openai": "1.2"}}
    assert list(found.partitions.values()) == [1]
    assert len(Bookmark.parse(found.seen)) == 1
    last = await bench.space.thread("a").why(third.id, limit=1)
    assert ([older.id for older in last.earlier], [event.event for event in last.events]) == ([second.id], ["after"])


async def test_why_of_what_is_not_there_is_not_found(bench: Bench) -> None:
    with pytest.raises(NotFound):
        await bench.space.thread("a").why("00" * 32)
