"""Erasure on real disks: the bytes of what was deleted are in no file, on any node."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from secrets import token_bytes, token_hex

import pytest

import shoal
from shoal.client.store import Space, Store
from shoal.config import Config
from tests.cli.conftest import served
from tests.end_to_end.test_watch import free_ports
from tests.support.remains import files_with, uncompressed

PATIENCE_S = 90.0
QUICK = Config(erase_within_s=0.1, reclaim_interval_s=0.1)

Write = Callable[[Space, str], Awaitable[None]]
Delete = Callable[[Space], Awaitable[None]]


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


WAYS = {
    "a pruned checkpoint": (_save, _prune),
    "a deleted thread's state": (_save, _delete_thread),
    "a trimmed event": (_append, _trim),
    "a deleted thread's event": (_append, _delete_thread),
    "a deleted document": (_edit, _delete_document),
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


async def test_what_was_deleted_before_the_store_was_closed_is_erased_when_it_is_open_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uncompressed(monkeypatch)
    mark = token_hex(16)
    async with shoal.open(tmp_path) as store:
        await _save(store.space("crew"), mark)
        await _delete_thread(store.space("crew"))
    assert files_with(tmp_path, mark.encode())
    async with shoal.open(tmp_path, config=QUICK):
        await gone(tmp_path, mark)


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
            assert all(holders(part) == directories for part in parts)
            await thread.delete()
            async with asyncio.timeout(PATIENCE_S):
                while any(holders(part) for part in parts):
                    await asyncio.sleep(0.2)
