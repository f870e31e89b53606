"""Find what only the directory of a node that is no member holds, and issue it again, for `shoal cluster leftovers [--issue]`.

The log of the directory names its operations, and a member tells by the bookmarks of reads how many of each origin it holds.
Operations that have left the log were held by a majority at least; but if this directory was never a member of a cluster with
others, that majority was itself, so all of its objects are listed. To find them changes nothing, here or in the cluster.

Laws:
- Nothing of the cluster is changed or hidden: values are added where it has none, and checkpoints on branches of their own.
- It may be repeated: keys and names follow from what is issued, so nothing is issued twice.
- An operation that is not issued is named, and stays where it is. The directory itself is not opened, but a copy of it: a
  node that runs on a directory retires origins, and truncates logs.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

import shoal
from shoal.cli.execution import check_store, encryption_key, tls_ca, token_file
from shoal.client.store import Space, Store
from shoal.config import Config
from shoal.errors import BookmarkLost, NotFound, SessionBehind, ShoalError
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


_ID_CHARS = 8
_STAYS = "the cluster has another value, so this one stays in the directory"


class Issued(NamedTuple):
    """The outcome for one object."""

    kind: str
    space: str
    name: str
    done: str  # For people: what was issued; empty: nothing had to be.
    stays: str = ""  # For people: what was not, and why.


class _Object(NamedTuple):
    left: Leftover
    mine: Space
    theirs: Space


async def issue(directory: Path, url: str, left: list[Leftover]) -> AsyncIterator[Issued]:
    """Issue what is left of these objects, one after the other, by the node behind the URL.

    Raises:
        StorageError: the directory cannot be copied or opened.
        ShoalError: the node cannot be reached.
    """
    with _copy_of(directory) as copy:
        async with (
            shoal.open(copy, encryption=encryption_key.get()) as mine,
            shoal.connect(url, tls_ca=tls_ca.get(), token=token_file.get()) as theirs,
        ):
            for each in left:
                yield await _issued(each, mine, theirs)


@contextmanager
def _copy_of(directory: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix=f".{directory.name}-", dir=directory.resolve().parent) as scratch:
        yield Path(shutil.copytree(directory, Path(scratch) / "copy"))


async def _issued(left: Leftover, mine: Store, theirs: Store) -> Issued:
    issuing = _KINDS.get(left.kind)
    if issuing is None:
        return Issued(*left[:3], "", f"a {left.kind} is not issued again: look at it with --data")
    try:
        done, stays = await issuing(_Object(left, mine.space(left.space), theirs.space(left.space)))
    except NotFound:
        return Issued(*left[:3], "")  # It was deleted there; that is not done again.
    except ShoalError as error:
        return Issued(*left[:3], "", error.message)
    return Issued(*left[:3], done, stays)


async def _thread(found: _Object) -> tuple[str, str]:
    events = await _events(found)
    saves, branches = await _checkpoints(found)
    done = [f"{events} events"] * bool(events) + [f"{saves} checkpoints on {', '.join(branches)}"] * bool(saves)
    return ", ".join(
        done
    ), "" if done else "its queues, steps, labels and statuses are not issued again: look at it with --data"


async def _events(found: _Object) -> int:
    mine, theirs = (space.thread(found.left.name).journal for space in (found.mine, found.theirs))
    try:
        there = {event.id async for event in theirs.read(skip_trimmed=True)}
    except NotFound:
        there = set()
    appended = 0
    async for event in mine.read(skip_trimmed=True):
        if event.id not in there and not event.erased:
            reply = await theirs.append(event.event, key=event.key or f"leftover-{event.id}")
            appended += reply.appended
    return appended


async def _checkpoints(found: _Object) -> tuple[int, list[str]]:
    """Save what the cluster lacks of each branch, in order, on a branch that is named after its head."""
    mine, theirs = (space.thread(found.left.name) for space in (found.mine, found.theirs))
    try:
        branches = await theirs.branches()
    except NotFound:
        branches = []
    known: dict[str, str] = {}  # Checkpoint there → the one in the cluster that has its state.
    for branch in branches:
        async for checkpoint in theirs.history(branch=branch.name):
            known[checkpoint.id] = known[str(checkpoint.metadata.get("leftover", checkpoint.id))] = checkpoint.id
    saved, named = 0, []
    for branch in await mine.branches():
        lacking = [each async for each in mine.history(branch=branch.name) if each.id not in known]
        name = f"leftovers-{branch.name}-{branch.head[:_ID_CHARS]}"
        for checkpoint in reversed(lacking):
            base = next((known[parent] for parent in checkpoint.parents if parent in known), shoal.NO_HEAD)
            state = (await mine.load(checkpoint.id)).state
            metadata = {**checkpoint.metadata, "leftover": checkpoint.id}
            made = await theirs.save(state, metadata=metadata, branch=name, parent=base, on_conflict="fork")
            known[checkpoint.id] = made.id
        saved += len(lacking)
        named += [name] * bool(lacking)
    return saved, named


async def _counter(found: _Object) -> tuple[str, str]:
    amount, key = found.left.added, found.left.key
    if amount:
        await found.theirs.counter(found.left.name).add(amount, key=key)
    return f"{amount:+}" if amount else "", ""


async def _set(found: _Object) -> tuple[str, str]:
    theirs = found.theirs.set(found.left.name)
    lacking = [each async for each in found.mine.set(found.left.name).members() if not await theirs.contains(each)]
    if lacking:
        await theirs.add(*lacking)
    return f"{len(lacking)} elements" if lacking else "", "removals are not issued again"


async def _register(found: _Object) -> tuple[str, str]:
    mine = await found.mine.register(found.left.name).siblings()
    theirs = found.theirs.register(found.left.name)
    there = await theirs.siblings()
    if there or not mine:
        return "", "" if all(each in there for each in mine) else _STAYS
    await theirs.set(mine[0])
    return "its value", _STAYS if len(mine) > 1 else ""


async def _map(found: _Object) -> tuple[str, str]:
    theirs = found.theirs.map(found.left.name)
    put, other = 0, 0
    async for entry in found.mine.map(found.left.name).entries():
        there = await theirs.entry(entry.key)
        if there is None and entry.siblings:
            await theirs.set(entry.key, entry.siblings[0])
            put += 1
        elif there is None or (there.siblings, there.count, there.members) != (entry.siblings, entry.count, entry.members):
            other += 1
    return f"{put} keys" if put else "", f"{other} keys differ from the cluster's, and stay in the directory" if other else ""


async def _items(found: _Object) -> tuple[str, str]:
    namespace = (found.left.name,) if found.left.name else ()
    put, other = 0, 0
    async for item in found.mine.items.scan(namespace):
        there = await found.theirs.items.get(item.namespace, item.key)
        if there is None:
            ttl = None if item.expires is None else item.expires - item.updated
            await found.theirs.items.put(item.namespace, item.key, item.value, ttl=ttl)
            put += 1
        elif there.value != item.value:
            other += 1
    return f"{put} items" if put else "", f"{other} items differ from the cluster's, and stay in the directory" if other else ""


_KINDS: dict[str, Callable[[_Object], Awaitable[tuple[str, str]]]] = {
    "thread": _thread,
    "counter": _counter,
    "set": _set,
    "register": _register,
    "map": _map,
    "items": _items,
}
