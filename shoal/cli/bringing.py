"""Brings a thread or a space of a backup into a store that runs, beside what is there.

Laws:
- What is there is not written to: a thread or a space of that name must be missing, unless an earlier attempt is gone on with.
- The backup is restored into a scratch directory, for the partitions that hold what is wanted; that is imported, compared, and
  the directory removed. One that an attempt left which was killed is used by the next attempt, with its moment.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from contextlib import aclosing
from hashlib import sha256
from pathlib import Path

import shoal
from shoal.backup.bucket import Bucket, ObjectStore
from shoal.client.store import Store
from shoal.config import Config
from shoal.errors import InvalidInput, MomentMissing, NotFound, StorageFull
from shoal.names import RESERVED, check_name
from shoal.node.backup import folding, restoring
from shoal.node.environment import system_environment
from shoal.protocol import requests
from shoal.records import NamedTuple
from shoal.storage.layout import FORMAT
from shoal.workflows.connection import Connection
from shoal.workflows.spaces import exists
from shoal.workflows.transfer.exporting import Wanted, export
from shoal.workflows.transfer.importing import Aim, ImportReport, import_from
from shoal.workflows.transfer.objects import KINDS


class Subject(NamedTuple):
    """The part of a backup that is wanted, and the name that it gets."""

    url: str  # Of the backup.
    space: str
    thread: str | None = None  # None: the whole space.
    name: str | None = None  # None: as it was called.
    moment: int | None = None  # In milliseconds since 1970; None: the latest.

    @property
    def partitions(self) -> list[int] | None:
        """Those that hold it; None: any of them may."""
        return restoring.partitions_of(self.space, self.thread)


class Brought(NamedTuple):
    """The outcome."""

    restored: folding.Restored | None  # None: an earlier attempt had made the scratch directory.
    report: ImportReport


async def bring(
    subject: Subject,
    store: Store,
    *,
    scratch: Path | None = None,
    resume: bool = False,
    encryption: str = "",
    progress: folding.Watcher = lambda _: None,
    open_store: Callable[[str], ObjectStore] | None = None,
) -> Brought:
    """Bring it into `store`. `scratch`: in which directory there is room for the partitions that hold it.

    Raises:
        InvalidInput: there is a thread or a space of that name already; nothing was written.
        NotFound: the backup has no such thread or space at that moment; nothing was written.
        StorageFull: the scratch directory lacks room; nothing was written.
        ShoalError: as `restoring.restore` and `import_from`; after that go on with `resume`.
    """
    for kind, name in (("space", subject.space), ("thread", subject.thread), ("name", subject.name)):
        if name is not None:
            check_name(kind, name)
    if RESERVED in (subject.space, subject.name if subject.thread is None else None):
        raise InvalidInput(f"{RESERVED!r} is the space of the nodes themselves. Nothing was restored.")
    if not resume:
        await _check_free(store.connection, subject)
    place = _scratch(subject, scratch)
    finished = False
    try:
        restored = None
        if not (place / FORMAT).exists():
            config = Config(encryption_key=encryption)
            await _check_room(subject, place, open_store)
            restored = await restoring.restore(
                *(subject.url, place),
                moment=subject.moment,
                partitions=subject.partitions,
                config=config,
                progress=progress,
                open_store=open_store,
            )
        async with shoal.open(place, encryption=encryption) as source:
            await _check_there(source.connection, subject)
            wanted = Wanted(subject.space, subject.thread, reveal=True)
            aim = Aim(name=subject.name, existing="resume" if resume else "refuse")
            async with aclosing(export(source.connection, wanted)) as lines:
                report = await import_from(store.connection, lines, aim)
        finished = True
    except (NotFound, StorageFull, MomentMissing):
        finished = True
        raise
    finally:
        if finished:
            shutil.rmtree(place, ignore_errors=True)
    return Brought(restored, report)


async def _check_free(connection: Connection, subject: Subject) -> None:
    if subject.thread is not None:
        here = subject.name or subject.thread
        if await exists(connection, subject.space, "thread", here):
            raise InvalidInput(
                f"there is a thread {here!r} in space {subject.space!r}. Nothing was written. Give another name with --as; or, "
                "if a restore of it was cut, go on with --resume."
            )
        return
    here = subject.name or subject.space
    for kind in ("thread", *KINDS):
        if (await connection.read(requests.ListObjects(here, kind, "", None, 1))).names:
            raise InvalidInput(
                f"space {here!r} is not empty: it has a {kind}. Nothing was written. Give another name with --as; or, if a "
                "restore of it was cut, go on with --resume."
            )


async def _check_there(connection: Connection, subject: Subject) -> None:
    """Check that the backup had what is wanted."""
    if subject.thread is not None:
        if await exists(connection, subject.space, "thread", subject.thread):
            return
        raise NotFound(
            f"the backup has no thread {subject.thread!r} in space {subject.space!r} at that moment. Nothing was written. "
            "Check both names, or name another moment with --at."
        )
    for kind in ("thread", *KINDS):
        if (await connection.read(requests.ListObjects(subject.space, kind, "", None, 1))).names:
            return
    raise NotFound(
        f"the backup has nothing in space {subject.space!r} at that moment. Nothing was written. Check the name, or name "
        "another moment with --at."
    )


def _scratch(subject: Subject, parent: Path | None) -> Path:
    """The scratch directory of this restore: the same at each attempt, and nobody else's.

    Raises:
        InvalidInput: it cannot be made, or is somebody else's.
    """
    named = sha256(repr(tuple(subject)).encode()).hexdigest()[:16]
    place = (parent or Path(tempfile.gettempdir())) / f"shoal-restore-{named}"
    try:
        place.mkdir(mode=0o700, exist_ok=True)
        found = os.lstat(place)
    except OSError as error:
        raise InvalidInput(f"{place} cannot be made: {error.strerror}. Nothing was written. Name another --scratch.") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise InvalidInput(f"{place} is somebody else's. Nothing was written. Name another --scratch.")
    return place


async def _check_room(subject: Subject, place: Path, open_store: Callable[[str], ObjectStore] | None) -> None:
    """Check that the scratch directory has room for what the partitions hold."""
    environment = system_environment()
    try:
        bucket = Bucket((open_store or environment.open_bucket)(subject.url), now=environment.monotonic)
        needed = await restoring.room(bucket, moment=subject.moment, partitions=subject.partitions, now_ms=environment.now_ms())
    finally:
        environment.close()
    free = shutil.disk_usage(place).free
    if needed > free:
        raise StorageFull(
            f"the restore needs about {needed:,} bytes for a while, and {place.parent} has {free:,}. Nothing was written. Name "
            "a directory with more room: --scratch DIR"
        )
