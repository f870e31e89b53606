"""Makes a directory of what a backup holds, up to a moment. And proves a backup: it reads every object, restores it into a
scratch directory, and checks that as `shoal verify` does.

Laws:
- The directory appears whole: until then it has no `FORMAT`, so that no node opens it.
- A restore that was killed, or could not reach the bucket, is gone on with by the next one of the same moment: it has kept its
  plan, and what is written is marked (`shoal.node.backup.folding`). Of another moment nothing is used.
- Only a backup that was restored and found sound is noted as verified; the note is an object of its own. Without the keys of
  a sealed one its objects are checked, and it says that no more was.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from shoal import __version__
from shoal.backup.bucket import Bucket, ObjectStore, read
from shoal.backup.format import ERASED, VERIFIED, Base, Catalogue, Moment, Pack, encode, incomplete, moment_of
from shoal.cluster import operation
from shoal.config import Config
from shoal.crdt.dot import COUNTER_BITS, wall_ms_of
from shoal.errors import BackupDamaged, BackupUnreachable, InvalidInput, MomentMissing, StoreCorrupt, StoreLocked
from shoal.names import is_colocated
from shoal.node.backup.folding import Restored, Watcher, date, folded
from shoal.node.environment import Environment, system_environment
from shoal.node.verification.report import Report
from shoal.node.verification.verify import verify
from shoal.records import NamedTuple
from shoal.storage import layout
from shoal.storage.opening import open_storage

if TYPE_CHECKING:
    pass

_UNFINISHED = (
    "restoring"  # Within the directory, on the same file system. No node opens a directory that holds this and no `FORMAT`.
)
_PLAN = "PLAN"  # Within that: what is restored,
_STORE = "store"  # the store in the making,
_WHOLE = "WHOLE"  # and that all of it is there, and is to be moved up.
_MOVED = ("LOCK", "WITNESS", "KEYS", "db")  # `FORMAT` follows them.


class _Plan(Struct, array_like=True, frozen=True):
    """The plan of a restore, as it is kept beside what it has written."""

    version: str  # Of Shoal: another one might write other rows.
    cluster: bytes
    moment_ms: int | None
    partitions: list[int] | None
    hlc: int
    bases: list[Base]
    segments: list[Pack]
    packs: list[Pack]
    through_ms: int


async def restore(
    url: str,
    directory: Path,
    *,
    moment: int | None = None,
    partitions: Collection[int] | None = None,
    config: Config | None = None,
    progress: Watcher = lambda _: None,
    open_store: Callable[[str], ObjectStore] | None = None,
) -> Restored:
    """Make a store in `directory`, which is missing or empty, of the backup at `url`.

    `moment` is in milliseconds since 1970; without it everything is restored. `partitions`: these alone. `config` says whether
    the new directory is encrypted (`encryption_key`).

    Raises:
        InvalidInput: the directory is not empty, or `url` is no address. Nothing was written.
        MomentMissing: the backup does not reach back so far, or the moment has not come yet. Nothing was written.
        BackupDamaged, BackupUnreachable, BackupConflict: the backup cannot be read, or lacks something. No store was made.
        StorageError: the directory cannot be written. No store was made.
    """
    environment = system_environment()
    try:
        store = (open_store or environment.open_bucket)(url)
        bucket = Bucket(store, now=environment.monotonic)
        return await _begun(bucket, directory, environment, moment, config or Config(), partitions, progress)
    finally:
        environment.close()


async def restored_from(bucket: Bucket, directory: Path, *, moment: int | None, config: Config) -> Restored:
    """As `restore`, of a bucket that is open."""
    environment = system_environment()
    try:
        return await _begun(bucket, directory, environment, moment, config, None, lambda _: None)
    finally:
        environment.close()


async def _begun(
    bucket: Bucket,
    directory: Path,
    environment: Environment,
    moment: int | None,
    config: Config,
    partitions: Collection[int] | None,
    progress: Watcher,
) -> Restored:
    found = _left(directory)
    catalogue = await read(bucket)
    assert catalogue.head is not None
    only = None if partitions is None else sorted(partitions)
    request = (__version__, catalogue.head.cluster, moment, only)
    if found is not None and (found.version, found.cluster, found.moment_ms, found.partitions) == request:
        wanted = Moment(found.hlc, {base.partition: base for base in found.bases}, found.segments)
        catalogue.packs = {pack.name: pack for pack in found.packs} | catalogue.packs
        try:
            made = await _restored(bucket, directory, wanted, config, environment, partitions, progress)
            return made._replace(through_ms=found.through_ms)  # What was shipped since then is not in it.
        except (StoreCorrupt, BackupDamaged):  # Its packs have gone meanwhile, or its rows are not sound.
            pass
    _check_empty(directory)
    wanted = plan(catalogue, moment, partitions, now_ms=environment.now_ms())
    names = {name for base in wanted.bases.values() for name, _ in base.pieces}
    packs = [pack for name, pack in catalogue.packs.items() if name in names]
    kept = _Plan(*request, wanted.hlc, list(wanted.bases.values()), wanted.segments, packs, catalogue.head.through_ms)
    unfinished = directory / _UNFINISHED
    try:
        unfinished.mkdir(parents=True)
    except OSError as error:
        raise InvalidInput(
            f"{directory} cannot be made, or not be written: {error.strerror}. Nothing was written. Name another directory, or "
            "let this user write there."
        ) from None
    await environment.run_blocking(partial(layout.replace_file, unfinished / _PLAN, encode(kept)))
    return await _restored(bucket, directory, wanted, config, environment, partitions, progress)


def _left(directory: Path) -> _Plan | None:
    """The plan of a restore into this directory that did not come to its end; None: there is none."""
    if (directory / layout.FORMAT).exists():
        return None
    try:
        return msgspec.msgpack.decode((directory / _UNFINISHED / _PLAN).read_bytes(), type=_Plan)
    except (OSError, ValueError):
        return None


def partitions_of(space: str, name: str | None) -> list[int] | None:
    """The partitions that hold an object of a space, or without a name all of them; None: any may."""
    if name is None and not is_colocated(space):
        return None
    return [operation.partition_of(space, name or "")]


async def room(bucket: Bucket, *, moment: int | None, partitions: Collection[int] | None, now_ms: int) -> int:
    """About how many bytes a restore of these partitions writes; of all operations, where those of one cannot be told.

    Raises:
        MomentMissing, BackupDamaged, BackupUnreachable, BackupConflict: as `restore`.
    """
    catalogue = await read(bucket)
    wanted = plan(catalogue, moment, partitions, now_ms=now_ms)
    rows = sum(base.size for base in wanted.bases.values())
    if partitions is None:
        return rows + sum(pack.size for pack in wanted.segments)
    since = [found.since for number in partitions if (found := catalogue.reached.get(number))]
    return rows + sum(since)


def plan(catalogue: Catalogue, moment_ms: int | None, partitions: Collection[int] | None = None, *, now_ms: int) -> Moment:
    """The needs of a restore to a moment. `now_ms` is the time, by the clock of the machine that restores.

    Raises:
        MomentMissing: the backup does not reach back so far, or the moment has not come yet.
    """
    through_ms = 0 if catalogue.head is None else catalogue.head.through_ms
    if moment_ms is not None and moment_ms >= max(now_ms, through_ms) + 1000:  # People name, and are told, whole seconds.
        raise MomentMissing(
            f"{date(moment_ms)} has not come yet: it is {date(now_ms)} by the clock of this machine, and the backup has "
            f"everything until {date(through_ms)}. Nothing was written. Name an earlier moment; without one the newest state "
            "is restored.",
            latest_ms=through_ms,
        )
    hlc = (1 << 63) - 1 if moment_ms is None else ((moment_ms + 1) << COUNTER_BITS) - 1
    earliest_ms = earliest(catalogue, partitions)
    if moment_ms is not None and moment_ms < earliest_ms:
        raise MomentMissing(
            f"the backup begins at {date(earliest_ms, later=True)}, and {date(moment_ms)} is before that. Nothing "
            "was written. Name a later moment; `shoal backup list URL` shows those that it has.",
            earliest_ms=earliest_ms,
        )
    if (base := incomplete(catalogue, hlc, partitions)) is not None:
        first, last = wall_ms_of(base.lacks_from), wall_ms_of(base.hlc) + 1
        if base.lacks_from == ERASED:
            raise MomentMissing(
                f"before {date(last, later=True)} the backup of partition {base.partition} is sealed under the keys of a space "
                "that was erased. Nothing was written. Name a later moment.",
                earliest_ms=last,
            )
        raise MomentMissing(
            f"from {date(first)} to {date(last, later=True)} the backup lacks operations of partition {base.partition}, "
            f"which had left the logs before they were shipped. Nothing was written. Name a moment before or after that.",
            earliest_ms=last,
        )
    return moment_of(catalogue, hlc, partitions)


def earliest(catalogue: Catalogue, partitions: Collection[int] | None = None) -> int:
    """The first moment that a backup has whole, in milliseconds since 1970: no partition begins later."""
    bases = [base for number, found in catalogue.bases.items() for base in found if partitions is None or number in partitions]
    begins = [wall_ms_of(base.hlc) + 1 for base in bases if base.lacks_from <= ERASED]
    times = [wall_ms_of(pack.first_hlc) for pack in catalogue.segments.values()] + [wall_ms_of(base.hlc) for base in bases]
    return max([min(times, default=0), wall_ms_of(catalogue.since), *begins])


def _check_empty(directory: Path) -> None:
    """Check that a store can be made in the directory; what an earlier restore left there, before its end, is removed.

    Raises:
        InvalidInput: it holds something.
    """
    if directory.exists() and not directory.is_dir():
        raise InvalidInput(f"{directory} is no directory. Nothing was written. Name one that is missing or empty.")
    try:
        names = {entry.name for entry in os.scandir(directory)} if directory.exists() else set()
    except OSError as error:
        raise InvalidInput(f"{directory} cannot be read: {error.strerror}. Nothing was written. Name another one.") from None
    if _UNFINISHED in names and layout.FORMAT not in names:
        shutil.rmtree(directory / _UNFINISHED)
        for name in names.intersection(_MOVED):
            path = directory / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        names -= {_UNFINISHED, *_MOVED}
    if found := layout.strangers(names):
        raise InvalidInput(
            f"{directory} is not empty: it holds {', '.join(found[:3])}. Nothing was written: a restore makes a new store, and "
            "replaces none. Name a directory that is missing or empty."
        )


async def _restored(
    bucket: Bucket,
    directory: Path,
    wanted: Moment,
    config: Config,
    environment: Environment,
    partitions: Collection[int] | None,
    progress: Watcher,
) -> Restored:
    made = directory / _UNFINISHED
    now_ms, entropy = environment.now_ms, environment.entropy
    opening = partial(open_storage, made / _STORE, config=config, now_ms=now_ms, entropy=entropy)
    try:
        if not (made / _WHOLE).exists():
            storage = await environment.run_blocking(opening)
            restored = await folded(
                storage, bucket, wanted, config=config, environment=environment, only=partitions, told=progress
            )
            await environment.run_blocking(partial(layout.replace_file, made / _WHOLE, encode(restored)))
        restored = msgspec.msgpack.decode((made / _WHOLE).read_bytes(), type=Restored)
        await environment.run_blocking(partial(_appear, made / _STORE, directory))
    except BackupUnreachable as error:
        error.message = f"{error.message} What was restored so far is kept: the same command goes on."
        error.args = (error.message,)
        raise
    except (KeyboardInterrupt, asyncio.CancelledError, StoreLocked):
        raise  # As if it were killed; or another one restores here.
    except BaseException:
        await environment.run_blocking(partial(shutil.rmtree, made, ignore_errors=True))
        raise
    return restored


def _appear(made: Path, directory: Path) -> None:
    for name in (*_MOVED, layout.FORMAT):
        if (made / name).exists():
            os.rename(made / name, directory / name)
            layout.sync_directory(directory)
    shutil.rmtree(directory / _UNFINISHED)
    layout.sync_directory(directory)


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
