"""What nodes have in the bucket, held against their disks: cold threads (docs/TIERING.md).

Laws:
- When a chunk leaves a disk, the bucket has it: a stub is written only where the object that it names is there, with its
  hash, and holds the row's chunk (invariant 3).
- No object is deleted while a durable row of its directory still leads to it (3).
- In the end each stub can be read, but where a fault took the object, or the disk was set back (3).
- In the end nothing is left of a thread that came back but the thread (15).
- In the end the bucket has no object of a directory that runs but those whose rows are all needed (15).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING

from shoal.crdt.rows import successor
from shoal.errors import StoreCorrupt
from shoal.node.tiering.chunks import THERE, name_of, unpacked
from shoal.node.tiering.mover import LOOK_AGAIN_S
from shoal.node.tiering.packs import OpenedPack
from shoal.storage import cold, keys
from shoal.storage.cold import Stub
from shoal.storage.interface import MemoryStorage
from simulation.judging.ledger import Violated
from simulation.judging.violation import Violation
from simulation.plan import Plan, Restore

if TYPE_CHECKING:
    from simulation.world.bucket import SimulatedBucket
    from simulation.world.cluster import SimulatedCluster
    from simulation.world.host import SimulatedNode

LOST, LEFT = "3", "15"

TIDY_S_MAX = 20.0
"""Healed, each node has deleted what it does not need within this virtual time."""

_LOOK_S = 0.3

_NODE = keys.meta("node")


def tiers(plan: Plan) -> bool:
    """Whether threads of a plan go to a bucket."""
    return any(act.kind == "set-tiering" for act in plan.acts)


def packs_on(storage: MemoryStorage) -> Iterator[tuple[bytes, bytes, bytes]]:
    """The packs of a disk: the prefix of the object's rows, the pack's name, and the directory that put it."""
    for of, pack, stored in cold.records(storage):
        yield of, pack, unpacked(stored).node


def name_of_pack(node: bytes, pack: bytes) -> str:
    """The name in the bucket."""
    return name_of(node, pack)


def stubs_on(storage: MemoryStorage) -> dict[bytes, Stub]:
    """By key."""
    if next(iter(cold.records(storage)), None) is None:
        return {}
    found = {key: cold.stub_of(key, value) for key, value in storage.scan(keys.OBJECT, successor(keys.OBJECT))}
    return {key: stub for key, stub in found.items() if stub is not None}


def filled(storage: MemoryStorage, bucket: SimulatedBucket) -> MemoryStorage:
    """A disk with the chunks in the places of stubs, as they were put: for comparisons. `storage` is changed."""
    nodes = {(of, pack): node for of, pack, node in packs_on(storage)}
    chunks: dict[bytes, bytes | None] = {}
    for key, stub in stubs_on(storage).items():
        of = keys.object_of(key)
        node = nodes.get((of, stub.pack))
        content = None if node is None else bucket.ever.get(name_of(node, stub.pack))
        if content is not None:
            chunks[key] = OpenedPack(stub.pack, content, stub.key).chunk(key[len(of) :])
    if chunks:
        storage.write(chunks)
    return storage


class PackWatch:
    """Watches the disk of one node: what leaves it for the bucket, and what the bucket loses."""

    def __init__(self, host: SimulatedNode, bucket: SimulatedBucket, violated: Violated) -> None:
        self._host = host
        self._bucket = bucket
        self._violated = violated

    def mounted(self, storage: MemoryStorage, /) -> None:
        """Nothing follows from that."""

    def replaced(self) -> None:
        """Nothing follows from that."""

    def synced(self) -> None:
        """Nothing follows from that."""

    def wrote(self, rows: Mapping[bytes, bytes | None], ranges: Sequence[tuple[bytes, bytes]], /) -> None:
        opened: dict[bytes, OpenedPack | str] = {}
        for key, value in rows.items():
            stub = cold.stub_of(key, value) if value is not None else None
            if stub is None:
                continue
            of = keys.object_of(key)
            if stub.pack not in opened:
                opened[stub.pack] = self._opened(rows.get(cold.record_key(of, stub.pack)), stub)
            pack = opened[stub.pack]
            try:
                why = pack if isinstance(pack, str) else pack.chunk(key[len(of) :]) and ""
            except StoreCorrupt as error:
                why = error.message
            if why:
                self._violated(LOST, f"{self._host.name} let go of chunk {key[len(of) :].hex()[:20]}, and {why}")

    def _opened(self, stored: bytes | None, stub: Stub) -> OpenedPack | str:
        if stored is None:
            return "noted no pack with it"
        name = name_of(unpacked(stored).node, stub.pack)
        content = self._bucket.objects.get(name)
        if content is None:
            return f"{name[:24]}… is not in the bucket"
        try:
            return OpenedPack(stub.pack, content, stub.key)
        except StoreCorrupt as error:
            return error.message

    def deleted(self, name: str) -> None:
        """A node is about to delete this object."""
        disk = self._host.disk.copy()
        node = disk.get(_NODE)
        if node is None or not name.startswith(f"tiers/{node.hex()}/"):
            return
        if any(name.endswith(stub.pack.hex()) for stub in stubs_on(disk).values()):
            self._violated(LOST, f"{self._host.name} deletes {name[-64:][:16]}…, which its disk still needs")


def watch(cluster: SimulatedCluster, violated: Violated) -> None:
    """Watch all disks and the bucket, from the beginning."""
    watches = []
    for host in cluster.hosts.values():
        watches.append(PackWatch(host, cluster.attic, violated))
        host.disk.watchers.append(watches[-1])

    async def at(moment: str) -> None:
        if moment.startswith("before delete tiers/"):
            for each in watches:
                each.deleted(moment.removeprefix("before delete "))

    cluster.attic.at = at


async def tidied(cluster: SimulatedCluster, plan: Plan, *, all_back: bool = False) -> list[Violation]:
    """Healed: each node needs what it has in the bucket, and can read it, soon. `all_back`: it has nothing there."""
    ends_at = asyncio.get_running_loop().time() + TIDY_S_MAX
    while found := list(_untidy(cluster, plan, all_back=all_back)):
        if asyncio.get_running_loop().time() >= ends_at:
            return found
        await asyncio.sleep(_LOOK_S)
    return []


def _untidy(cluster: SimulatedCluster, plan: Plan, *, all_back: bool) -> Iterator[Violation]:
    set_back = {fault.node for fault in plan.faults if isinstance(fault, Restore)}
    bucket = cluster.attic
    for name, host in cluster.hosts.items():
        disk = host.disk.copy()
        needed = _needed(disk)
        recorded = {pack: unpacked(stored) for _, pack, stored in cold.records(disk)}
        spoilt = {pack for pack, record in recorded.items() if name_of(record.node, pack) in bucket.spoilt}
        is_set_back = name in set_back
        for pack, count in needed.items():
            record = recorded.get(pack)
            if record is None:
                yield Violation(LOST, f"{name} has {count} rows in pack {pack.hex()[:16]}, and no note of it")
            elif pack not in spoilt and not is_set_back and not _is_there(bucket, name_of(record.node, pack), pack):
                yield Violation(LOST, f"{name} has {count} rows in pack {pack.hex()[:16]}, which is not in the bucket")
        for pack, record in recorded.items():
            if (pack in spoilt or is_set_back) and needed.get(pack):
                continue
            if all_back or record.state != THERE or record.count != needed.get(pack, 0):
                yield Violation(LEFT, f"{name} still has pack {pack.hex()[:16]}, of which it needs {needed.get(pack, 0)} rows")
        if any(_opens(bucket.ever, needed, key) for key in {stub.key for stub in stubs_on(disk).values()}):
            yield Violation(LEFT, f"{name} has a key to a pack of which it needs nothing any more")
        if all_back and _looks_again(plan) and next(cold.warm(disk), None) is not None:
            yield Violation(LEFT, f"{name} still has the names of threads that came back")
        node = disk.get(_NODE)
        if node is not None and not is_set_back:
            ours = {name_of(node, pack) for pack in recorded}
            for left in bucket.names(f"tiers/{node.hex()}/"):
                if left not in ours and "probe" not in left:
                    yield Violation(LEFT, f"the bucket has {left[-64:][:16]} of {name}, which does not know it")


def _looks_again(plan: Plan) -> bool:
    """Whether a node looks at all of its packs within its time here: a plan that was made smaller may not ask it to."""
    return float(plan.settings.get("look_again_s", LOOK_AGAIN_S)) < TIDY_S_MAX


def _needed(disk: MemoryStorage) -> dict[bytes, int]:
    found: dict[bytes, int] = {}
    for stub in stubs_on(disk).values():
        found[stub.pack] = found.get(stub.pack, 0) + 1
    return found


def _opens(ever: Mapping[str, bytes], needed: Mapping[bytes, int], key: bytes) -> bool:
    """Whether a key that is still there opens what nobody needs."""
    for name, content in ever.items():
        if name.startswith("tiers/") and "probe" not in name and (pack := bytes.fromhex(name[-64:])) not in needed:
            with suppress(StoreCorrupt):
                OpenedPack(pack, content, key)
                return True
    return False


def _is_there(bucket: SimulatedBucket, name: str, pack: bytes) -> bool:
    return sha256(bucket.objects.get(name, b"")).digest() == pack
