"""Backups of encrypted nodes: sealed in the bucket, opened by the master key, and unreadable once a space is erased."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from os import urandom
from pathlib import Path
from random import Random

import msgspec
import pytest

from shoal.backup.bucket import Bucket, read
from shoal.backup.format import BASES, KEYS, MANIFESTS, SEGMENTS, Catalogue, Manifest, Pack, encode, manifest_name, read_entries
from shoal.config import Config
from shoal.encryption import KeyService
from shoal.errors import BackupDamaged, BackupUnreachable, MasterKeyWrong, MomentMissing
from shoal.node.backup import shipping
from shoal.node.backup.folding import folded
from shoal.node.backup.restoring import plan, verified
from shoal.node.backup.sealing import Opener, Sealer
from shoal.protocol.requests import DeclareBackup
from shoal.storage.encrypted.keyring import LocalKeys
from shoal.storage.interface import MemoryStorage
from simulation.bounds import altered
from simulation.world.bucket import SimulatedBucket
from simulation.world.environment import SimulatedEnvironment
from tests.node.backup.conftest import URL, rows_of, state_of
from tests.node.collection.test_sealing import MASTER, Sealed, sealed

OTHER = bytes(range(32, 64))
SECRET = "attack at dawn"


@pytest.fixture
async def node() -> AsyncIterator[Sealed]:
    async with sealed() as made:
        yield made


@pytest.fixture
def bucket(node: Sealed) -> SimulatedBucket:
    return SimulatedBucket(now_ms=lambda: node.simulated.now_ms)


async def declare(node: Sealed, bucket: SimulatedBucket) -> None:
    node.simulated.bucket = bucket
    await node.node.backups.stop()
    await node.node.session().call(DeclareBackup(URL))


async def ship(node: Sealed) -> None:
    await node.node.backups.look()


async def fill(node: Sealed, *spaces: str) -> None:
    for space in spaces or ("crew", "other"):
        node.simulated.now_ms += 10
        await node.store.space(space).thread("t").save({"text": SECRET * 20}, overwrite=True)
        await node.store.space(space).set("urls").add(f"{SECRET} {node.simulated.now_ms}")
        await node.store.space(space).counter("n").add(1)


async def restore(
    bucket: SimulatedBucket, *masters: bytes, moment: int | None = None, service: KeyService | None = None
) -> MemoryStorage:
    environment = SimulatedEnvironment(77).environment
    storage = MemoryStorage()
    reading = Bucket(bucket, now=environment.monotonic)
    wanted = plan(await read(reading), moment, now_ms=bucket._now_ms())
    master = service or (LocalKeys(masters, urandom) if masters else None)
    await folded(storage, reading, wanted, config=Config(), environment=environment, master=master)
    return MemoryStorage(storage._durable.rows)


def plain_in(bucket: SimulatedBucket) -> list[str]:
    """The objects that show the secret."""
    return [name for name, content in bucket.objects.items() if SECRET.encode() in content]


async def test_a_sealed_backup_shows_nothing_and_comes_back(node: Sealed, bucket: SimulatedBucket) -> None:
    await fill(node)
    await declare(node, bucket)
    with altered(base_after_bytes=0):
        await ship(node)
        node.simulated.now_ms += shipping.BASE_EVERY_MS
        await fill(node)
        await ship(node)
    await fill(node)
    await ship(node)
    assert bucket.names(BASES)
    assert len(bucket.names(KEYS)) == 1
    assert plain_in(bucket) == []
    assert rows_of(await restore(bucket, MASTER)) == rows_of(node.storage)  # type: ignore[arg-type]


async def test_a_wrong_key_or_none_is_told(node: Sealed, bucket: SimulatedBucket) -> None:
    await fill(node)
    await declare(node, bucket)
    await ship(node)
    with pytest.raises(MasterKeyWrong, match="Give the right key"):
        await restore(bucket, OTHER)
    with pytest.raises(MasterKeyWrong, match="no master key was given"):
        await restore(bucket)
    await restore(bucket, OTHER, MASTER)


async def test_a_new_master_key_opens_what_was_shipped_before(node: Sealed, bucket: SimulatedBucket) -> None:
    await fill(node)
    await declare(node, bucket)
    await ship(node)
    ring = node.storage.keyring
    ring.adopt(ring.renewed(LocalKeys([OTHER, MASTER], urandom)))
    await fill(node)
    await ship(node)
    assert rows_of(await restore(bucket, OTHER)) == rows_of(node.storage)  # type: ignore[arg-type]
    with pytest.raises(MasterKeyWrong):
        await restore(bucket, MASTER)


async def test_new_data_keys_of_the_node_change_nothing(node: Sealed, bucket: SimulatedBucket) -> None:
    await fill(node)
    await declare(node, bucket)
    await ship(node)
    node.storage.keyring.rotate(list(node.storage.keyring.scopes))
    await fill(node)
    await ship(node)
    assert rows_of(await restore(bucket, MASTER)) == rows_of(node.storage)  # type: ignore[arg-type]


async def test_a_restarted_node_goes_on_with_its_keys(node: Sealed, bucket: SimulatedBucket) -> None:
    await fill(node)
    await declare(node, bucket)
    await ship(node)
    async with sealed(MemoryStorage(node.below._durable.rows), node.home) as again:
        again.simulated.bucket, again.simulated.now_ms = bucket, node.simulated.now_ms
        await again.node.backups.stop()
        await fill(again)
        await ship(again)
        assert len(bucket.names(KEYS)) == 1
        assert rows_of(await restore(bucket, MASTER)) == rows_of(again.storage)  # type: ignore[arg-type]


async def test_lost_keys_are_told_and_not_replaced(node: Sealed, bucket: SimulatedBucket) -> None:
    await fill(node)
    await declare(node, bucket)
    await ship(node)
    [name] = bucket.names(KEYS)
    del bucket.objects[name]
    with pytest.raises(BackupDamaged, match="is missing, which has keys"):
        await restore(bucket, MASTER)
    async with sealed(MemoryStorage(node.below._durable.rows), node.home) as again:
        again.simulated.bucket, again.simulated.now_ms = bucket, node.simulated.now_ms
        await again.node.backups.stop()
        with pytest.raises(BackupDamaged, match="Declare another place"):
            await ship(again)
    assert bucket.names(KEYS) == []


async def test_keys_are_there_before_what_they_seal(node: Sealed, bucket: SimulatedBucket) -> None:
    await fill(node)
    await declare(node, bucket)
    order: list[str] = []

    async def noted(moment: str) -> None:
        order.append(moment)

    bucket.at = noted
    await ship(node)
    first = next(nth for nth, moment in enumerate(order) if SEGMENTS in moment or BASES in moment)
    assert any(moment.startswith(f"after replace {KEYS}") for moment in order[:first])


async def test_faults_of_the_bucket_lose_no_keys(node: Sealed, bucket: SimulatedBucket) -> None:
    await declare(node, bucket)
    bucket._random, bucket.share, bucket.slow_s = Random(4), 0.4, 0.01
    for nth in range(12):
        await fill(node, f"s{nth}")
        try:
            await ship(node)
        except BackupUnreachable:
            continue
    bucket.share = 0.0
    await ship(node)
    assert rows_of(await restore(bucket, MASTER)) == rows_of(node.storage)  # type: ignore[arg-type]


# ── erasure ───────────────────────────────────────────────────────────────────


async def test_an_erased_space_is_unreadable_and_the_others_stay(node: Sealed, bucket: SimulatedBucket) -> None:
    await fill(node)
    await declare(node, bucket)
    await ship(node)
    before_ms = node.simulated.now_ms
    [name] = bucket.names(KEYS)
    old = dict(bucket.objects)
    await node.erased("other")
    for _ in range(4):
        node.simulated.now_ms += 1000
        await ship(node)
    made = await restore(bucket, MASTER)
    assert state_of(made) == state_of(node.storage)  # type: ignore[arg-type]
    with pytest.raises(MomentMissing):
        await restore(bucket, MASTER, moment=before_ms)
    # Whoever kept the packs, and has the keys of now, reads what is not erased alone.
    kept = SimulatedBucket()
    kept.modified = bucket.modified
    kept.objects = {**old, name: bucket.objects[name]}
    with pytest.raises(BackupDamaged, match="its space was erased"):
        await restore(kept, MASTER)
    kept.objects = old
    await restore(kept, MASTER)


async def test_keys_stay_until_no_kept_moment_needs_them(node: Sealed, bucket: SimulatedBucket) -> None:
    """The bucket fails at each call in turn: the latest moment can be restored at any time."""
    for nth in range(1, 60):
        async with sealed() as made:
            place = SimulatedBucket(now_ms=lambda made=made: made.simulated.now_ms)  # type: ignore[misc]
            await fill(made)
            await declare(made, place)
            await ship(made)
            await made.store.space("other").delete()
            await made.pass_by(0)
            await ship(made)  # The deletions are there before the keys go.
            await made.pass_by(61_000)
            left = nth

            async def failing(moment: str) -> None:
                nonlocal left
                left -= 1
                if left == 0:
                    raise BackupUnreachable(f"at {moment}. Nothing that is stored here is lost.")

            place.at = failing
            with altered(bases_at_once=1):
                with suppress(BackupUnreachable):
                    for _ in range(4):
                        await ship(made)
                        assert state_of(await restore(place, MASTER))
                place.at = SimulatedBucket().at
                assert state_of(await restore(place, MASTER))
                for _ in range(5):
                    await ship(made)
            assert SECRET.encode() not in b"".join(place.objects.values())
            assert state_of(await restore(place, MASTER)) == state_of(made.storage)  # type: ignore[arg-type]
            if left > 0:
                assert nth > 4
                return


async def test_a_space_of_the_same_name_gets_new_keys(node: Sealed, bucket: SimulatedBucket) -> None:
    await fill(node)
    await declare(node, bucket)
    await ship(node)
    await node.erased("other")
    await fill(node, "other")
    for _ in range(3):
        node.simulated.now_ms += 1000
        await ship(node)
    assert state_of(await restore(bucket, MASTER)) == state_of(node.storage)  # type: ignore[arg-type]


# ── what is not as it was ─────────────────────────────────────────────────────


def rewritten(bucket: SimulatedBucket, pack: Pack, content: bytes, catalogue: Catalogue) -> None:
    """Somebody who can write to the bucket, and has no key, alters a pack, and all hashes of it."""
    from hashlib import sha256

    from shoal.backup.format import read_index

    parts = read_index(bucket.objects[pack.name][pack.index :], pack)
    parts = [
        msgspec.structs.replace(part, digest=sha256(content[part.start : part.start + part.size]).digest()) for part in parts
    ]
    index = encode(parts)
    forged = content[: pack.index] + index
    name = f"{pack.name.partition('/')[0]}/{sha256(forged).hexdigest()}"
    bucket.objects[name] = forged
    made = msgspec.structs.replace(pack, name=name, size=len(forged), digest=sha256(index).digest())
    assert catalogue.head is not None
    number = catalogue.number
    manifest = msgspec.msgpack.decode(bucket.objects[manifest_name(number)], type=Manifest)
    segments = [made if each.name == pack.name else each for each in manifest.segments]
    bucket.objects[manifest_name(number)] = encode(msgspec.structs.replace(manifest, segments=segments))


async def test_altered_ciphertext_is_refused(node: Sealed, bucket: SimulatedBucket) -> None:
    await fill(node)
    await declare(node, bucket)
    await ship(node)
    catalogue = await read(Bucket(bucket, now=lambda: 0.0))
    [pack] = catalogue.segments.values()
    content = bucket.objects[pack.name]
    objects = dict(bucket.objects)
    for at in range(pack.index - 40, pack.index, 13):  # The last operation's ciphertext and tag.
        bucket.objects = dict(objects)
        rewritten(bucket, pack, content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :], catalogue)
        with pytest.raises(BackupDamaged, match="does not open"):
            await restore(bucket, MASTER)


async def test_an_operation_opens_in_its_own_place_alone(node: Sealed, bucket: SimulatedBucket) -> None:
    await fill(node)
    await declare(node, bucket)
    await ship(node)
    reading = Bucket(bucket, now=lambda: 0.0)
    [pack] = (await read(reading)).segments.values()
    [part, *_] = await reading.index(pack)
    [entry, *_] = read_entries(await reading.part(pack, part), "")
    opened = await Opener(reading, LocalKeys([MASTER], urandom), node.simulated.environment).keys(pack.sealed)
    assert opened.operation(part.partition, entry.origin, entry.sequence, entry.content)
    places = [
        (part.partition + 1, entry.origin, entry.sequence),
        (part.partition, urandom(16), entry.sequence),
        (part.partition, entry.origin, entry.sequence + 1),
    ]
    for place in places:
        with pytest.raises(BackupDamaged, match="does not open"):
            opened.operation(*place, entry.content)


async def test_nonces_never_repeat(node: Sealed, bucket: SimulatedBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []
    operation = Sealer.operation

    def noted(self: Sealer, shipment: object, plain: bytes) -> bytes:
        found = operation(self, shipment, plain)  # type: ignore[arg-type]
        seen.append(found[1:25])  # The key, the salt and the nonce.
        return found

    monkeypatch.setattr(Sealer, "operation", noted)
    await declare(node, bucket)
    for _ in range(5):
        await fill(node)
        bucket.refused = "503" if len(seen) % 2 else ""
        try:
            await ship(node)  # After a failure the same operations are sealed again.
        except BackupUnreachable:
            bucket.refused = ""
            await ship(node)
    assert len(seen) > 20
    assert len(set(seen)) == len(seen)


@pytest.mark.real_time("it uses files and threads")
async def test_verification_without_keys_says_what_it_checked(node: Sealed, bucket: SimulatedBucket, tmp_path: Path) -> None:
    await fill(node)
    await declare(node, bucket)
    await ship(node)
    reading = Bucket(bucket, now=lambda: 0.0)
    outcome = await verified(reading, tmp_path / "a", config=Config(), environment=SimulatedEnvironment(5).environment)
    assert (outcome.restored, outcome.report, outcome.sealed) == (None, None, outcome.objects)
    key = tmp_path / "key"
    key.write_text(MASTER.hex())
    config = Config(encryption_key=f"file:{key}")
    outcome = await verified(reading, tmp_path / "b", config=config, environment=SimulatedEnvironment(5).environment)
    assert outcome.report is not None
    assert outcome.report.sound
    bucket.objects[bucket.names(SEGMENTS)[0]] = b"damaged"
    with pytest.raises(BackupDamaged):
        await verified(reading, tmp_path / "c", config=Config(), environment=SimulatedEnvironment(5).environment)
    assert bucket.names(MANIFESTS)
