"""Erasure on real disks: the bytes of what was deleted are in no file, on any node."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from secrets import token_bytes, token_hex

import msgspec
import pytest

import shoal
from chaos.ports import free_ports
from shoal.client.store import Space, Store
from shoal.config import Config
from shoal.crdt import deletion
from shoal.storage import keys
from shoal.storage.rocks import RocksStorage
from simulation.bounds import altered
from tests.cli.conftest import served
from tests.support.remains import files_with, uncompressed

PATIENCE_S = 90.0
QUICK = Config(erase_within_s=0.1, log_keep_s=0.1, tick_s=0.1)

Write = Callable[[Space, str], Awaitable[None]]
Delete = Callable[[Space], Awaitable[None]]


@pytest.fixture(autouse=True)
def bounds() -> Iterator[None]:
    with altered(reclaim_interval_s=0.1):
        yield


async def _save(space: Space, mark: str) -> None:
    thread = space.thread("t")
    await thread.save({"n": 1, "secret": mark, "long": [mark] * 2000})
    await thread.save({"n": 2})


async def _prune(space: Space) -> None:
    assert (await space.thread("t").prune(keep_last=1)).count == 1


async def _delete_thread(space: Space) -> None:
    assert await space.thread("t").delete()


async def _append(space: Space, mark: str) -> None:
    journal = space.thread("t").journal
    await journal.append({"said": mark})
    await journal.append("the last")


async def _trim(space: Space) -> None:
    assert (await space.thread("t").journal.trim(keep=1)).events == 1


async def _edit(space: Space, mark: str) -> None:
    async with await space.document("d") as document:
        document.text("t").insert(0, mark)


async def _delete_document(space: Space) -> None:
    async with await space.document("d") as document:
        assert await document.delete()


async def _send(space: Space, mark: str) -> None:
    await space.thread("t").inbox.send(mark)


async def _set(space: Space, mark: str) -> None:
    await space.register("r").set(mark, key=f"a-key-{mark[:4]}")


async def _delete_register(space: Space) -> None:
    assert await space.register("r").delete()


async def _add(space: Space, mark: str) -> None:
    await space.set("s").add(mark, "another")


async def _clear(space: Space) -> None:
    assert await space.set("s").clear() == 2


async def _delete_set(space: Space) -> None:
    assert await space.set("s").delete()


async def _put_entry(space: Space, mark: str) -> None:
    await space.map("m").set(mark, mark)


async def _remove_entries(space: Space) -> None:
    for entry in await space.map("m").entries():
        await space.map("m").remove(entry.key)


async def _put_item(space: Space, mark: str) -> None:
    await space.items.put(("memory", "user-1"), mark, {"is": mark})
    await space.items.index(("memory",), "is")


async def _delete_item(space: Space) -> None:
    for item in await space.items.search(("memory",)):
        assert await space.items.delete(item.namespace, item.key)


async def _delete_items(space: Space) -> None:
    assert await space.items.delete_all(("memory",)) == 1


async def _write_all(space: Space, mark: str) -> None:
    for write in (_save, _append, _edit, _send, _set, _add, _put_entry, _put_item):
        await write(space, mark)
    await space.counter("c").add(1, key=mark)
    await space.schemas.put("plan", 1, {"title": mark})


async def _delete_space(space: Space) -> None:
    assert (await space.delete()).left == 0


WAYS = {
    "a pruned checkpoint": (_save, _prune),
    "a deleted thread's state": (_save, _delete_thread),
    "a trimmed event": (_append, _trim),
    "a deleted thread's event": (_append, _delete_thread),
    "a deleted document": (_edit, _delete_document),
    "a deleted register": (_set, _delete_register),
    "a removed member": (_add, _clear),
    "a deleted set": (_add, _delete_set),
    "a removed entry of a map": (_put_entry, _remove_entries),
    "a deleted item, which was indexed": (_put_item, _delete_item),
    "all items below a label": (_put_item, _delete_items),
    "a deleted space": (_write_all, _delete_space),
}


async def gone(directory: Path, mark: str) -> None:
    """Return once no file below the directory holds the text."""
    async with asyncio.timeout(PATIENCE_S):
        while files_with(directory, mark.encode()):
            await asyncio.sleep(0.2)


async def others(store: Store) -> None:
    """Write what stays, before and after, so that files hold more than what is deleted."""
    for _ in range(50):
        await store.space("crew").thread(f"other-{token_hex(4)}").save({"text": token_hex(1000)})


@pytest.mark.answers("deleted-data-can-still-be-read-in-the-files")
@pytest.mark.parametrize("way", WAYS)
async def test_the_files_of_a_store_hold_nothing_of(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uncompressed(monkeypatch)
    write, delete = WAYS[way]
    mark = token_hex(16)
    async with shoal.open(tmp_path, config=QUICK) as store:
        await others(store)
        await write(store.space("crew"), mark)
        await others(store)
        assert files_with(tmp_path, mark.encode())
        await delete(store.space("crew"))
        await gone(tmp_path, mark)


async def test_deletions_before_a_close_are_erased_after_opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uncompressed(monkeypatch)
    mark = token_hex(16)
    async with shoal.open(tmp_path) as store:
        await _save(store.space("crew"), mark)
    assert files_with(tmp_path, mark.encode()), "a close writes a file of what was not deleted yet"
    async with shoal.open(tmp_path) as store:
        await _delete_thread(store.space("crew"))
    assert files_with(tmp_path, mark.encode())
    async with shoal.open(tmp_path, config=QUICK):
        await gone(tmp_path, mark)


@pytest.mark.answers("deleted-data-can-still-be-read-in-the-files")
async def test_of_a_deleted_space_its_deletions_are_left_and_no_other_row(tmp_path: Path) -> None:
    config = msgspec.structs.replace(QUICK, key_window_s=1, forget_after_s=1.0)
    async with shoal.open(tmp_path, config=config) as store:
        for n in range(3):
            await _write_all(store.space(f"crew-{n}"), f"text {n}")
        for n in range(3):
            await store.space(f"crew-{n}").delete()
        async with asyncio.timeout(PATIENCE_S):
            while rows(store) - {keys.META, keys.VECTOR, keys.BASE, keys.OBJECT}:
                await asyncio.sleep(0.2)
    storage = RocksStorage.open(tmp_path, config=Config(), now_ms=0)
    try:
        found = [key for key, _ in storage.scan(keys.OBJECT, b"P")]
        assert {keys.split_object(key)[4] for key in found} == {deletion.ROW}
    finally:
        storage.close()


def rows(store: Store) -> set[bytes]:
    """The tables of an embedded store that have rows."""
    storage = inspect.getclosurevars(store._close.__self__._stop).nonlocals["node"]._storage  # type: ignore[attr-defined]
    return {key[:1] for key, _ in storage.scan(b"", None)}


@pytest.mark.answers("deleted-data-can-still-be-read-in-the-files")
async def test_no_node_of_a_cluster_keeps_what_was_deleted_at_one(tmp_path: Path) -> None:
    quick = {"SHOAL_ERASE_WITHIN_S": "0.1", "SHOAL_SYNC_INTERVAL_S": "0.1"}
    secret = token_bytes(200_000)  # Of random bytes a compressed file keeps every part as it is.
    parts = [secret[at : at + 24] for at in range(10_000, len(secret), 20_000)]

    def holders(part: bytes) -> list[Path]:
        return [directory for directory in directories if files_with(directory, part)]

    addresses = [f"127.0.0.1:{port}" for port in free_ports(3)]
    directories = [tmp_path / address for address in addresses]
    with ExitStack() as stack:
        urls = [
            stack.enter_context(served(directory, "--listen", address, "--join", ",".join(addresses), config=quick))[1]
            for directory, address in zip(directories, addresses, strict=True)
        ]
        async with shoal.connect(",".join(urls), durability="all") as store:
            await others(store)
            thread = store.space("crew").thread("t")
            await thread.save({"secret": secret})
            await others(store)
            # A block of a file, or a chunk of the value, may end within one of them.
            assert sum(holders(part) == directories for part in parts) > len(parts) // 2
            await thread.delete()
            async with asyncio.timeout(PATIENCE_S):
                while any(holders(part) for part in parts):
                    await asyncio.sleep(0.2)
