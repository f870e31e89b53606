"""Proves a backup: reads every object, restores it into a scratch directory, and checks that as `shoal verify` does.

Law: only a backup that was restored and found sound is noted as verified; the note is an object of its own. Without the keys of
a sealed one its objects are checked, and it says that no more was.
"""

from __future__ import annotations

from pathlib import Path

from shoal.backup.bucket import Bucket, read
from shoal.backup.format import VERIFIED
from shoal.config import Config
from shoal.node.backup.folding import Restored
from shoal.node.backup.restoring import restored_from
from shoal.node.environment import Environment, system_environment
from shoal.node.verification.report import Report
from shoal.node.verification.verify import verify
from shoal.records import NamedTuple
from shoal.storage.opening import open_storage


class Verified(NamedTuple):
    """The outcome of a verification."""

    objects: int  # That were read.
    restored: Restored | None  # None: it is sealed, and there is no master key.
    report: Report | None
    sealed: int  # Objects whose content is sealed.


async def verified(
    bucket: Bucket, directory: Path, *, moment: int | None = None, config: Config, environment: Environment | None = None
) -> Verified:
    """Restore a backup into `directory`, which is missing or empty and which the caller removes, and check all of it.

    Raises:
        BackupDamaged, BackupUnreachable, BackupConflict, MomentMissing, StorageError: as `restore`.
    """
    used = environment or system_environment()
    try:
        return await _verified(bucket, directory, moment, config, used)
    finally:
        if environment is None:
            used.close()


async def _verified(bucket: Bucket, directory: Path, moment: int | None, config: Config, environment: Environment) -> Verified:
    now_ms, entropy = environment.now_ms, environment.entropy
    catalogue = await read(bucket)
    packs = [*catalogue.segments.values(), *catalogue.packs.values()]
    for pack in packs:
        await bucket.whole(pack)
    sealed = sum(bool(pack.sealed) for pack in packs)
    if sealed and not config.encryption_key:
        return Verified(len(packs), None, None, sealed)
    restored = await restored_from(bucket, directory, moment=moment, config=config)
    storage = open_storage(directory, config=config, now_ms=now_ms, entropy=entropy)
    try:
        report = verify(storage, config=config)
    finally:
        storage.close()
    if report.sound and moment is None:
        await bucket.store.put_new(f"{VERIFIED}{now_ms():015d}", b"%d" % restored.through_ms)
    return Verified(len(packs), restored, report, sealed)
