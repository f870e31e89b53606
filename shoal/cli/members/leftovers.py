"""Find what only the directory of a node that is no member holds, for `shoal cluster leftovers`.

The log of the directory names its operations, and a member tells by the bookmarks of reads how many of each origin it holds.
Operations that have left the log were held by a majority at least; but if this directory was never a member of a cluster with
others, that majority was itself, so all of its objects are listed. Nothing is changed, here or in the cluster.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import shoal
from shoal.cli.target import check_store, encryption_key, tls_ca, token_file
from shoal.config import Config
from shoal.errors import BookmarkLost, SessionBehind
from shoal.node.incarnation import had_fellows
from shoal.node.verification.remains import Held, logged_before, name_in, naming, operations
from shoal.records import NamedTuple
from shoal.storage import keys
from shoal.storage.opening import open_storage

_SPACE = "default"  # Any space has names in every partition.


class Leftover(NamedTuple):
    """An object, and the number of its operations that only the directory holds."""

    kind: str
    space: str
    name: str
    operations: int  # In its log.
    added: int = 0  # If it is a counter: what these add.
    key: str = ""  # Of these operations: it is the same whenever they are found.


class _Contents(NamedTuple):
    directory: str  # Its id, in hex.
    held: list[Held]
    left: list[Held]  # Of a directory that was never a member: the last operations that left its log, with all objects there.


async def lacking(directory: Path, url: str) -> list[Leftover]:
    """The objects with operations that are in the log of this directory, and that the node behind the URL does not hold.

    Raises:
        NotFound, StorageError: the directory holds no store, or cannot be read.
        ShoalError: the node cannot be reached.
    """
    check_store(directory)
    contents = _contents(directory)
    held = contents.held
    lacked: Counter[tuple[str, str, str]] = Counter()
    added: Counter[tuple[str, str, str]] = Counter()
    async with shoal.connect(url, tls_ca=tls_ca.get(), token=token_file.get()) as store:
        for _, group in groupby(held, key=lambda each: each.partition):
            logged = list(group)
            if await _holds(store, logged):
                continue
            for _, some in groupby(logged, key=lambda each: each.dot.origin):
                found = list(some)
                for each in found[await _first_lacking(url, found) :]:
                    lacked.update(each.objects)
                    added.update(each.added)
        for each in contents.left:
            if not await _holds(store, [each]):
                lacked.update(dict.fromkeys(each.objects, 0))
    return [
        Leftover(*named, operations, added[named], f"leftover-{contents.directory}-{operations}")
        for named, operations in sorted(lacked.items())
    ]


def _contents(directory: Path) -> _Contents:
    config = Config(encryption_key=encryption_key.get())
    storage = open_storage(directory, config=config, now_ms=lambda: time.time_ns() // 1_000_000, entropy=os.urandom)
    try:
        left = [] if had_fellows(storage) else list(logged_before(storage))
        return _Contents((storage.get(keys.meta("node")) or b"").hex(), list(operations(storage)), left)
    finally:
        storage.close()


async def _first_lacking(url: str, found: Sequence[Held]) -> int:
    """The index of the first of these operations of one origin that the node lacks: it holds those before."""
    low, high = 0, len(found)
    while low < high:
        middle = (low + high) // 2
        async with shoal.connect(url, tls_ca=tls_ca.get(), token=token_file.get()) as store:  # A bookmark only grows.
            is_held = await _holds(store, found[middle : middle + 1])
        low, high = (middle + 1, high) if is_held else (low, middle)
    return low


async def _holds(store: shoal.Store, held: Sequence[Held]) -> bool:
    """Whether the serving node holds these operations of one partition, and those before them of their origins."""
    partition = held[0].partition
    store.observe(naming(partition, held))
    try:
        await store.space(_SPACE).register(name_in(_SPACE, partition)).get()
    except (BookmarkLost, SessionBehind):
        return False
    return True
