"""Origins: no restart, restore or clone can issue a dot twice."""

from __future__ import annotations

import pytest

from shoal.cluster.operation import NO_TIP
from shoal.crdt.dot import Dot, Origin, belongs
from shoal.crdt.rows import successor
from shoal.errors import StoreCorrupt
from shoal.node.incarnation import Incarnation
from shoal.storage import keys
from shoal.storage.interface import MemoryStorage
from tests.node.conftest import Bench, Opener


def dots(storage: MemoryStorage) -> list[tuple[int, Dot]]:
    return [keys.split_log(key) for key, _ in storage.scan(keys.LOG, successor(keys.LOG))]


async def test_an_opening_takes_its_origin_at_its_first_write(bench: Bench) -> None:
    assert (await bench.store.status()).origin == ""
    await bench.space.counter("n").add(1)
    assert (await bench.store.status()).origin != ""


async def test_an_opening_that_writes_nothing_leaves_nothing(bench: Bench) -> None:
    await bench.space.counter("n").value()
    await bench.node.stop()
    assert list(bench.storage.left_by_crash(None).scan(b"", None)) == []


@pytest.mark.answers("sequence-number-is-reused-after-a-lost-fsync")
async def test_every_opening_writes_under_an_origin_of_its_own(open_bench: Opener) -> None:
    storage = MemoryStorage()
    for seed in range(3):
        opened = open_bench(storage, seed=seed)
        await opened.space.counter("n").add(1)
        storage = storage.left_by_crash(0)
    assert len({dot.origin for _, dot in dots(storage)}) == 3
    assert [dot.sequence for _, dot in dots(storage)] == [1, 1, 1]


@pytest.mark.answers("sequence-number-is-reused-after-a-lost-fsync")
async def test_a_clone_of_a_cleanly_stopped_directory_shares_no_dot(open_bench: Opener) -> None:
    original = open_bench()
    await original.space.counter("n").add(1)
    await original.node.stop()
    clones = [open_bench(original.storage.left_by_crash(0), seed=seed) for seed in (5, 6)]
    for clone in clones:
        await clone.space.counter("n").add(1)
    before = set(dots(original.storage.left_by_crash(0)))
    fresh = [set(dots(clone.storage.left_by_crash(0))) - before for clone in clones]
    assert all(len(found) == 1 for found in fresh)
    assert not fresh[0] & fresh[1]


@pytest.mark.answers("no-dot-names-two-payloads", "sequence-number-is-reused-after-a-lost-fsync")
async def test_a_restored_backup_shares_no_dot_with_what_was_lost(open_bench: Opener) -> None:
    node = open_bench()
    await node.space.counter("n").add(1)
    backup = node.storage.left_by_crash(0)
    await node.space.counter("n").add(2)
    restored = open_bench(backup, seed=9)
    await restored.space.counter("n").add(4)
    lost = set(dots(node.storage.left_by_crash(0))) - set(dots(backup))
    assert not lost & set(dots(restored.storage.left_by_crash(0)))


async def test_a_clean_stop_is_told_from_a_crash(open_bench: Opener) -> None:
    node = open_bench()
    await node.space.counter("n").add(1)
    assert open_bench(node.storage.left_by_crash(0), seed=2).node.resumed_after_crash
    await node.node.stop()
    assert not open_bench(node.storage.left_by_crash(0), seed=3).node.resumed_after_crash


async def test_the_first_write_after_a_clean_stop_takes_the_marker_away(open_bench: Opener) -> None:
    node = open_bench()
    await node.space.counter("n").add(1)
    await node.node.stop()
    second = open_bench(node.storage.left_by_crash(0), seed=2)
    await second.space.counter("n").add(1)
    assert open_bench(second.storage.left_by_crash(0), seed=3).node.resumed_after_crash


async def test_a_hole_in_the_tail_of_the_log_refuses_to_open(open_bench: Opener) -> None:
    node = open_bench()
    for _ in range(3):
        await node.space.counter("n").add(1)
    storage = node.storage.left_by_crash(0)
    partition, dot = dots(storage)[1]
    storage.write({keys.log(partition, dot): None})
    with pytest.raises(StoreCorrupt, match="operation 2 of origin"):
        open_bench(storage, seed=2)


async def test_the_vector_never_exceeds_what_is_durable(bench: Bench) -> None:
    for n in range(5):
        await bench.space.counter(f"c{n}").add(1)
    bench.simulated.hold_syncs()
    for n in range(5):
        await bench.space.counter(f"c{n}").add(1, durability="memory")
    for keep in range(6):
        storage = bench.storage.left_by_crash(keep)
        logged = set(dots(storage))
        for key, _ in storage.scan(keys.VECTOR, successor(keys.VECTOR)):
            from shoal.cluster.operation import Tip

            partition, origin = int.from_bytes(key[1:3], "big"), Origin(key[3:])
            tip = Tip.unpack(storage.get(key) or NO_TIP.pack())
            assert all((partition, Dot(origin, n)) in logged for n in range(1, tip.sequence + 1))
    bench.simulated.release_syncs()


async def test_hlc_goes_on_above_what_an_earlier_opening_issued(open_bench: Opener) -> None:
    node = open_bench()
    node.simulated.now_ms += 3_600_000
    await node.space.register("r").set("from the fast clock")
    again = open_bench(node.storage.left_by_crash(0), seed=2)
    await again.space.register("r").set("later, though its clock is behind")
    assert await again.space.register("r").get() == "later, though its clock is behind"


async def test_a_write_that_changes_nothing_takes_no_origin(open_bench: Opener) -> None:
    """Else the clean-stop marker would stay while its opening writes on."""
    node = open_bench()
    await node.space.counter("n").add(1, key="k")
    await node.node.stop()
    again = open_bench(node.storage.left_by_crash(0), seed=2)
    await again.space.counter("n").add(1, key="k")
    assert (await again.store.status()).origin == ""
    await again.space.counter("n").add(1)
    assert open_bench(again.storage.left_by_crash(0), seed=3).node.resumed_after_crash


async def test_an_origin_names_its_directory(open_bench: Opener) -> None:
    opened = open_bench()
    await opened.space.counter("n").add(1)
    [(_, dot)] = dots(opened.storage.left_by_crash(0))
    assert belongs(dot.origin, opened.node._incarnation.node)


async def test_a_copy_knows_its_originals_and_a_restart_is_none(open_bench: Opener) -> None:
    storage, nodes, originals = MemoryStorage(), [], []
    for seed, disk in enumerate((b"one", b"two", b"two", b"three")):
        opened = open_bench(MemoryStorage(dict(storage.scan(b"", None)), identity=disk), seed=seed)
        await opened.space.counter("n").add(1)
        nodes.append(opened.node._incarnation.node)
        originals.append(opened.node._incarnation.originals)
        storage = opened.storage.left_by_crash(0)
    first, second, again, _ = nodes
    assert second == again
    assert originals == [(), (first,), (first,), (first, second)]


async def test_a_copy_remembers_a_bounded_number_of_originals(open_bench: Opener) -> None:
    storage = MemoryStorage()
    for number in range(70):
        opened = open_bench(MemoryStorage(dict(storage.scan(b"", None)), identity=b"%d" % number), seed=number)
        await opened.space.counter("n").add(1)
        storage = opened.storage.left_by_crash(0)
    assert len(opened.node._incarnation.originals) == 64


@pytest.mark.answers("seed-4815162")
def test_origins_are_forgotten_in_the_same_order_by_every_process() -> None:
    origins = {Origin(bytes([number]) * 16) for number in range(64)}
    rows = list(Incarnation.without(origins))
    assert rows == sorted(rows)
    assert len(rows) == 64
