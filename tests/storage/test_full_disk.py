"""A full disk: what was acknowledged can still be read, nothing is written, and each error is told once."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.errors import NotFound, ReadOnly, StorageFull
from shoal.storage import engine as recovery
from shoal.storage import rocks
from shoal.storage.layout import Holder, StoreLock
from tests.cli.conftest import PATIENCE_S, clean_environment
from tests.support import forked

NO_SPACE = "IO error: No space left on device: While appending to file"


def _only_for_reading(opened: Any) -> Any:
    """How RocksDB is opened where no file can be written."""

    def refused(files: Path, options: Any, *, access_type: Any = None) -> Any:
        if access_type is None:
            raise RuntimeError(NO_SPACE)
        return opened(files, options, access_type=access_type)

    return refused


async def filled(directory: Path) -> None:
    async with shoal.open(directory) as store:
        await store.space("s").thread("t").save({"n": 1})


async def test_a_store_on_a_full_disk_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await filled(tmp_path / "state")
    monkeypatch.setattr(recovery, "_rdict", _only_for_reading(recovery._rdict))
    before = {path.name: path.read_bytes() for path in (tmp_path / "state" / "db").iterdir()}
    async with shoal.open(tmp_path / "state") as store:
        assert (await store.space("s").thread("t").load()).state == {"n": 1}
        status = await store.status()
        assert status.state == "read-only"
        assert "No space left" in status.reason
        with pytest.raises(ReadOnly, match=r"No space left.*Nothing was written\. Reads still work") as refused:
            await store.space("s").thread("t").update({"n": 2})
        assert refused.value.written == "no"
        with pytest.raises(NotFound):
            await store.space("s").thread("other").load()
    assert {path.name: path.read_bytes() for path in (tmp_path / "state" / "db").iterdir() if path.name in before} == before


async def test_a_store_that_was_read_on_a_full_disk_opens_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await filled(tmp_path / "state")
    with monkeypatch.context() as patched:
        patched.setattr(recovery, "_rdict", _only_for_reading(recovery._rdict))
        async with shoal.open(tmp_path / "state"):
            pass
    async with shoal.open(tmp_path / "state") as store:
        await store.space("s").thread("t").update({"n": 2})
        assert (await store.status()).state == "ready"


def test_a_lock_needs_no_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shoal.storage.layout.os.pwrite", full)
    lock = StoreLock.acquire(tmp_path / "LOCK", holder=Holder.this_process(0))
    lock.release()


async def test_leaving_a_store_whose_disk_is_full_raises_nothing_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise StorageFull("A write failed.")

    async with shoal.open(tmp_path / "state") as store:
        await store.space("s").counter("n").add(1)
        monkeypatch.setattr(rocks.RocksStorage, "write", full)
    monkeypatch.undo()
    async with shoal.open(tmp_path / "state") as store:
        assert await store.space("s").counter("n").value() == 1


async def test_leaving_does_not_hide_the_error_of_the_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(_: object) -> None:
        raise StorageFull("The disk is full.")

    with pytest.raises(ZeroDivisionError) as raised:
        async with shoal.open(tmp_path / "state") as store:
            real = store._close
            monkeypatch.setattr(type(store), "close", refused)
            raise ZeroDivisionError
    assert raised.value.__notes__ == ["The store could not be closed cleanly either: The disk is full."]
    await real()


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 40 MB."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(("mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", place), capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("only root may mount a file system")
    yield place
    subprocess.run(("umount", "-l", place), check=True)


async def test_commands_read_a_directory_on_a_disk_that_is_full(small: Path) -> None:
    async with shoal.open(small / "state") as store:
        await store.space("s").thread("t").save({"n": 1})
        with pytest.raises((StorageFull, ReadOnly)):
            while True:
                await store.space("s").thread("big").journal.append(os.urandom(200_000))
        with pytest.raises(ReadOnly) as refused:
            await store.space("s").thread("t").update({"n": 2})
        assert ".." not in str(refused.value)
    with pytest.raises(OSError, match="No space"), open(small / "rest", "wb") as rest:
        while True:
            rest.write(bytes(1 << 16))
            rest.flush()
    for command in (("status",), ("threads", "--space", "s"), ("show", "t", "--space", "s"), ("verify",)):
        data = (str(small / "state"),) if command == ("verify",) else ("--data", str(small / "state"))
        ended = await asyncio.to_thread(forked.run, ["-m", "shoal", *command, *data], clean_environment(), timeout=PATIENCE_S)
        assert ended.returncode == 0, (command, ended.stderr)
