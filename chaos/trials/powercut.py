"""A power cut, played by copying: the directory as the disk may hold it afterwards.

Law: what was fsynced is in the copy, whole. Of the log that RocksDB was
writing, what lies past its last fsynced byte is cut anywhere, in the middle
of a record too. Of large values what was not synced is lost. A log that was closed was synced before the next was begun.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from shoal.storage import layout
from shoal.storage.rocks import RocksStorage

_ATTEMPTS_MAX = 50


def synced_wal_bytes(storage: RocksStorage) -> dict[str, int]:
    """How many bytes of the newest synced log are durable, by its file name."""
    synced = storage.synced
    return {layout.wal_name(synced.wal): synced.wal_bytes}


def power_cut(
    source: Path,
    target: Path,
    *,
    synced_wal_bytes: Callable[[], Mapping[str, int]],
    cut: Callable[[int, int], int],
    unsynced: Callable[[], Iterable[tuple[str, int, int]]] = tuple,
) -> None:
    """Copy the store at `source`, live or killed, to `target` as a power cut would have left it.

    `cut` picks a length between two bounds, both inclusive: `random.Random(seed).randint`. `synced_wal_bytes` is asked
    during the copy: with a live store whatever was acknowledged before the call is covered. `unsynced`: parts of files, by
    name, start and stop, of which nothing is left.

    Raises:
        RuntimeError: the store was never still for long enough to copy its files as of one moment.
    """
    for _ in range(_ATTEMPTS_MAX):
        target.mkdir(parents=True)
        # The witness first: it may claim only what the logs, copied later, hold.
        for name in (layout.FORMAT, layout.WITNESS):
            shutil.copyfile(source / name, target / name)
        synced, lost = dict(synced_wal_bytes()), list(unsynced())
        if _copy_still(source / layout.DATABASE, target / layout.DATABASE):
            _cut_logs(target / layout.DATABASE, synced=synced, cut=cut)
            for name, start, stop in lost:
                _blank(target / layout.DATABASE / name, start, stop)
            return
        shutil.rmtree(target)
    raise RuntimeError(f"{source} changed its set of files during each of {_ATTEMPTS_MAX} copies")


def unsynced_parts(storage: RocksStorage) -> list[tuple[str, int, int]]:
    """The parts of files of large values that are not durable yet."""
    return [(storage.large.path(number).name, start, stop) for number, start, stop in storage.large.unsynced]


def _blank(file: Path, start: int, stop: int) -> None:
    with file.open("r+b") as opened:
        opened.seek(start)
        opened.write(bytes(stop - start))


def _copy_still(source: Path, target: Path) -> bool:
    """Copy a database; False if a table or log came or went, or the manifest grew meanwhile."""
    before = _shape(source)
    target.mkdir()
    try:
        for name in before:
            shutil.copyfile(source / name, target / name)
    except FileNotFoundError:
        return False
    return _shape(source) == before


def _shape(database: Path) -> dict[str, int]:
    sizes = {}
    for name in os.listdir(database):
        if name != "LOCK":
            try:
                sizes[name] = os.stat(database / name).st_size if name.startswith("MANIFEST") else 0
            except FileNotFoundError:
                sizes[name] = -1  # It has just been replaced: the directory is not still.
    return sizes


def _cut_logs(database: Path, *, synced: Mapping[str, int], cut: Callable[[int, int], int]) -> None:
    newest_synced = max((layout.wal_number(name) or 0 for name in synced), default=0)
    for name in sorted(os.listdir(database)):
        number = layout.wal_number(name)
        if number is not None and number >= newest_synced:
            size = os.stat(database / name).st_size
            os.truncate(database / name, cut(synced.get(name, 0), size))
