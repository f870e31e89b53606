"""Erasure and rotation by key, on real disks and among real nodes."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from os import urandom
from pathlib import Path

import pytest

import shoal
from chaos.ports import free_ports
from shoal.client.store import Store
from shoal.config import Config
from shoal.errors import CatchingUp, MasterKeyWrong, NotFound, StoreCorrupt
from shoal.kinds.tiering import flows as tiering
from shoal.storage.encrypted.keyring import Keyring, KeysFile, service_of
from tests.cli.conftest import served
from tests.end_to_end.test_encryption import SECRET, contents, fill, shoal_command

PATIENCE_S = 90.0
QUICK = Config(encryption_erase_s=0.3)
QUICK_SERVED = {"SHOAL_ENCRYPTION_ERASE_S": "0.5", "SHOAL_SYNC_INTERVAL_S": "0.1"}


@pytest.fixture
def make_key(tmp_path: Path) -> Callable[[str], str]:
    def make(name: str) -> str:
        file = tmp_path / name
        file.write_text(urandom(32).hex() + "\n")
        return f"file:{file}"

    return make


def spaces(directory: Path, key: str) -> set[str]:
    """The spaces of which a directory has keys, by its file."""
    keyring = Keyring(KeysFile(directory), service_of(key, urandom), entropy=urandom, now_ms=lambda: 0, keys_max=1000)
    return {scope.decode() for scope in keyring.scopes if scope > b"\0"}


async def until_erased(store: shoal.Store) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while (await store.status()).keys_wait_for:
            await asyncio.sleep(0.1)


async def test_a_deleted_space_of_every_type_loses_its_keys(tmp_path: Path, make_key: Callable[[str], str]) -> None:
    key = make_key("master.key")
    async with shoal.open(tmp_path / "state", encryption=key, config=QUICK) as store:
        await store.space("desk").register("r").set(SECRET)
        await fill(store)
        await store.space("crew").delete()
        await until_erased(store)
        assert await store.space("desk").register("r").get() == SECRET
    assert spaces(tmp_path / "state", key) == {"desk"}
    assert shoal_command("verify", str(tmp_path / "state"), key=key).returncode == 0


@pytest.mark.answers("erased-spaces-lose-their-keys")
async def test_a_thread_that_is_away_does_not_come_back_without_its_key(
    tmp_path: Path, make_key: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither by what the bucket kept nor by rows that the disk kept: the space's key sealed those with the keys of packs."""
    monkeypatch.setattr(tiering, "IDLE_MS_MIN", 1)
    key, state, bucket = make_key("master.key"), tmp_path / "state", tmp_path / "bucket"
    text = urandom(150_000).hex()
    async with shoal.open(state, encryption=key, config=QUICK) as store:
        await store.space("desk").register("r").set(SECRET)
        await store.space("crew").thread("t").save({"text": text})
    async with shoal.open(state, encryption=key, config=QUICK) as store:
        await store.space("crew").tiering.set(f"file://{bucket}", idle=0.001)
        assert (await store.space("crew").tiering.run()).away_bytes > 100_000
    packs = [file for file in bucket.rglob("*") if file.is_file()]
    assert packs
    assert not any(text[:64].encode() in file.read_bytes() for file in packs)
    shutil.copytree(bucket, tmp_path / "kept-bucket")
    shutil.copytree(state, tmp_path / "kept-rows")
    async with shoal.open(state, encryption=key, config=QUICK) as store:
        await store.space("crew").delete()
        await until_erased(store)
    shutil.copytree(tmp_path / "kept-bucket", bucket, dirs_exist_ok=True)
    async with shoal.open(state, encryption=key, config=QUICK) as store:
        with pytest.raises(NotFound):
            await store.space("crew").thread("t").load()
        assert await store.space("desk").register("r").get() == SECRET
    shutil.copytree(tmp_path / "kept-rows", tmp_path / "with-its-keys")
    async with shoal.open(tmp_path / "with-its-keys", encryption=key, config=QUICK) as store:
        assert (await store.space("crew").thread("t").load()).state == {"text": text}
    # The rows of before, and the keys that are left.
    KeysFile(tmp_path / "kept-rows").replace(KeysFile(state).read() or b"")
    with pytest.raises((MasterKeyWrong, StoreCorrupt, NotFound)):
        async with shoal.open(tmp_path / "kept-rows", encryption=key, config=QUICK) as store:
            await store.space("crew").thread("t").load()


async def test_the_command_erases_a_store_that_is_not_open(tmp_path: Path, make_key: Callable[[str], str]) -> None:
    key, state = make_key("master.key"), str(tmp_path / "state")
    async with shoal.open(state, encryption=key) as store:
        await fill(store)
    done = shoal_command("space", "erase", "crew", "--yes", "--data", state, "--json", key=key)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["destroyed"]
    assert told["left"] == 0
    assert spaces(Path(state), key) == set()


async def test_the_command_refuses_where_nothing_is_encrypted(tmp_path: Path) -> None:
    async with shoal.open(tmp_path / "state") as store:
        await store.space("crew").register("r").set(SECRET)
    refused = shoal_command("space", "erase", "crew", "--yes", "--data", str(tmp_path / "state"))
    assert refused.returncode == 1
    assert "not encrypted" in refused.stderr
    async with shoal.open(tmp_path / "state") as store:
        assert await store.space("crew").register("r").get() == SECRET


@pytest.mark.answers("erased-spaces-lose-their-keys")
async def test_a_backup_opens_under_its_own_master_key_alone(tmp_path: Path, make_key: Callable[[str], str]) -> None:
    old, new = make_key("old.key"), make_key("new.key")
    async with shoal.open(tmp_path / "state", encryption=old, config=QUICK) as store:
        await fill(store)
        shown = await contents(store)
    shutil.copytree(tmp_path / "state", tmp_path / "backup")
    both = tmp_path / "both.key"
    both.write_text((tmp_path / "new.key").read_text() + (tmp_path / "old.key").read_text())
    async with shoal.open(tmp_path / "state", encryption=f"file:{both}", config=QUICK) as store:
        await store.space("crew").delete()
        await until_erased(store)
    with pytest.raises(MasterKeyWrong):  # At once: the new key does not open what was written before.
        async with shoal.open(tmp_path / "backup", encryption=new):
            pass
    async with shoal.open(tmp_path / "backup", encryption=old) as store:  # Who still has the old one reads the backup.
        assert await contents(store) == shown
    with pytest.raises(MasterKeyWrong):
        async with shoal.open(tmp_path / "state", encryption=old):
            pass
    async with shoal.open(tmp_path / "state", encryption=new):
        pass


@pytest.mark.answers("erased-spaces-lose-their-keys")
def test_a_running_node_takes_a_new_master_key(tmp_path: Path, make_key: Callable[[str], str]) -> None:
    make_key("old.key")
    make_key("new.key")
    old, new = ((tmp_path / name).read_text() for name in ("old.key", "new.key"))
    file = tmp_path / "in-force.key"
    file.write_text(old)
    with served(tmp_path / "state", "--encryption-key", f"file:{file}") as (process, url):
        assert shoal_command("save", "t", '{"n": 1}', "--space", "crew", "--url", url).returncode == 0
        before = json.loads(shoal_command("status", "--json", "--url", url).stdout)["master_key"]
        file.write_text(new + old)
        process.send_signal(signal.SIGHUP)
        while json.loads(shoal_command("status", "--json", "--url", url).stdout)["master_key"] == before:
            assert process.poll() is None
        file.write_text("no key")
        process.send_signal(signal.SIGHUP)
        assert shoal_command("save", "t", '{"n": 2}', "--space", "crew", "--url", url, "--force").returncode in (0, 2)
        process.terminate()
        _, log = process.communicate(timeout=PATIENCE_S)
    assert "master-key-replaced" in log
    for text in (old, new):
        assert text.strip() not in log
    file.write_text(new)
    shown = shoal_command("show", "t", "--space", "crew", "--data", str(tmp_path / "state"), key=f"file:{file}")
    assert '"n"' in shown.stdout
    file.write_text(old)
    assert shoal_command("show", "t", "--space", "crew", "--data", str(tmp_path / "state"), key=f"file:{file}").returncode != 0


@pytest.mark.answers("erased-spaces-lose-their-keys")
async def test_every_node_destroys_its_keys_and_a_restored_backup_does_once_it_is_told(
    tmp_path: Path, make_key: Callable[[str], str]
) -> None:
    addresses = [f"127.0.0.1:{port}" for port in free_ports(3)]
    directories = [tmp_path / f"n{number}" for number in range(3)]
    sources = [make_key(f"{number}.key") for number in range(2)] + [""]  # The third node is not encrypted.

    def start(stack: ExitStack, number: int) -> tuple[subprocess.Popen[str], str]:
        options = ["--listen", addresses[number], "--join", ",".join(addresses)]
        options += ["--encryption-key", sources[number]] if sources[number] else []
        return stack.enter_context(served(directories[number], *options, config=QUICK_SERVED))

    async def is_there(store: Store) -> bool:
        try:
            return "crew" in (await store.status()).keys_wait_for or "crew" in [name async for name in store.spaces()]
        except CatchingUp:  # The node that was restored replaces a partition.
            return True

    async def both_lack_it(urls: list[str]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            for url in urls:
                async with shoal.connect(url) as store:
                    while await is_there(store):
                        await asyncio.sleep(0.2)
            while any("crew" in spaces(directory, source) for directory, source in zip(directories[:2], sources, strict=False)):
                await asyncio.sleep(0.2)

    with ExitStack() as stack:
        running = [start(stack, number) for number in range(3)]
        urls = [url for _, url in running]
        async with shoal.connect(",".join(urls), durability="all") as store:
            await store.space("desk").register("r").set(SECRET)
            await fill(store)
        running[1][0].terminate()
        running[1][0].communicate(timeout=PATIENCE_S)
        shutil.copytree(directories[1], tmp_path / "backup")
        assert "crew" in spaces(tmp_path / "backup", sources[1])
        running[1] = start(stack, 1)
        async with shoal.connect(urls[0]) as store:
            await store.space("crew").delete()
        await both_lack_it([urls[0], urls[1]])

        running[1][0].terminate()
        running[1][0].communicate(timeout=PATIENCE_S)
        shutil.rmtree(directories[1])
        shutil.copytree(tmp_path / "backup", directories[1])
        assert "crew" in spaces(directories[1], sources[1])
        running[1] = start(stack, 1)
        await both_lack_it([urls[1]])
        async with shoal.connect(urls[1]) as store:
            assert await store.space("desk").register("r").get() == SECRET
