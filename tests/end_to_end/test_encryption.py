"""Encryption at rest: what files show, what opens a directory, and that a store is the same above."""

from __future__ import annotations

import gc
import logging
import subprocess
from os import urandom
from pathlib import Path

import pytest

import shoal
from shoal.config import Config
from shoal.errors import MasterKeyWrong, ShoalError, StoreCorrupt
from shoal.storage.encrypted.storage import open_encrypted
from tests.cli.conftest import PATIENCE_S, clean_environment, served
from tests.support import forked
from tests.support.remains import files_with, uncompressed

SECRET = "zq7-known-text-9xw"  # In every value, member, message and document; in no name.


@pytest.fixture
def key(tmp_path: Path) -> str:
    file = tmp_path / "master.key"
    file.write_text(urandom(32).hex())
    return f"file:{file}"


async def fill(store: shoal.Store) -> None:
    """Write the secret through every type of data, as content."""
    space = store.space("crew")
    thread = space.thread("t", author="ana")
    saved = await thread.save({"messages": [SECRET * 400], "note": SECRET}, metadata={"why": SECRET}, key="first")
    await thread.append("messages", SECRET)
    await thread.branch("other", at=saved.id)
    await thread.journal.append({"event": SECRET}, key="event-1")
    await thread.inbox.send(SECRET, by="bo")
    await thread.worklist("pages").add({"one": SECRET})
    await thread.step("look", key="call-1", call=lambda: _found())
    await thread.pause(SECRET)
    async with await space.document("d") as document:
        document.text("body").insert(0, SECRET)
        document.map("tasks")["t1"] = {"title": SECRET}
    await space.register("r").set(SECRET)
    await space.set("s").add(SECRET, f"{SECRET}-2")
    await space.map("m").set("key", SECRET)
    await space.map("m").include("tags", SECRET)
    await space.items.put(("notes", "a"), "k", {"text": SECRET})
    await space.items.index(("notes",), "text")
    await space.items.put(("notes", "a"), "k2", {"text": f"{SECRET} too"})
    await space.schemas.put("plan", 1, {"title": SECRET})


async def _found() -> dict[str, str]:
    return {"found": SECRET}


async def contents(store: shoal.Store) -> list[object]:
    """What `fill` wrote, as it is read."""
    space = store.space("crew")
    thread = space.thread("t")
    async with await space.document("d") as document:
        body = str(document.text("body"))
    return [
        (await thread.load()).state,
        [event.event async for event in thread.journal.read() if event.key == "event-1"],
        body,
        await space.register("r").get(),
        sorted([member async for member in space.set("s").members()]),
        await space.map("m").get("key"),
        sorted([item.key for item in await space.items.search(("notes",), filter={"text": SECRET})]),
        (await space.thread("t").status()).reason,
    ]


def content_of(directory: Path) -> dict[str, bytes]:
    """All files but those that an opening of RocksDB replaces."""
    files = [file for file in directory.rglob("*") if file.is_file() and not file.name.startswith(("LOCK", "LOG"))]
    return {str(file): file.read_bytes() for file in files}


@pytest.mark.answers("encrypted-files-show-nothing", note="with a plain directory as the control")
async def test_a_known_text_is_in_no_file_of_an_encrypted_directory(
    tmp_path: Path, key: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    uncompressed(monkeypatch)
    caplog.set_level(logging.DEBUG)
    shown = {}
    for name, encryption in (("plain", ""), ("encrypted", key)):
        for turn in range(2):
            async with shoal.open(tmp_path / name, encryption=encryption) as store:
                if turn == 0:
                    await fill(store)
                shown[name] = await contents(store)
                # While it is open the newest rows are in the log alone, and after it was closed in tables.
                assert bool(files_with(tmp_path / name, SECRET.encode())) == (name == "plain")
        assert bool(files_with(tmp_path / name, SECRET.encode())) == (name == "plain")
    assert shown["plain"] == shown["encrypted"]
    assert SECRET not in caplog.text
    secrets = bytes.fromhex((tmp_path / "master.key").read_text())
    assert not files_with(tmp_path / "encrypted", secrets)
    assert secrets.hex() not in caplog.text


@pytest.mark.answers("encrypted-files-show-nothing")
async def test_no_hash_of_content_is_in_a_file(tmp_path: Path, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    uncompressed(monkeypatch)
    for name, encryption in (("plain", ""), ("encrypted", key)):
        async with shoal.open(tmp_path / name, encryption=encryption) as store:
            saved = await store.space("crew").thread("t").save({"long": [SECRET * 10_000]})
        # The id is a hash of the content, and the key of the checkpoint's row.
        assert bool(files_with(tmp_path / name, bytes.fromhex(saved.id))) == (name == "plain")


@pytest.mark.answers("encrypted-files-show-nothing")
async def test_a_directory_without_its_key_is_not_opened_and_not_changed(tmp_path: Path, key: str) -> None:
    other = tmp_path / "other.key"
    other.write_text(urandom(32).hex())
    async with shoal.open(tmp_path / "state", encryption=key) as store:
        await fill(store)
    before = content_of(tmp_path / "state")
    for wrong in ("", f"file:{other}", "file:/nowhere", "env:SHOAL_NO_SUCH", urandom(32).hex()):
        with pytest.raises(MasterKeyWrong, match="Nothing was written"):
            async with shoal.open(tmp_path / "state", encryption=wrong):
                pass
    assert content_of(tmp_path / "state") == before
    async with shoal.open(tmp_path / "state", encryption=key) as store:
        assert (await store.space("crew").register("r").get()) == SECRET


async def test_a_plain_directory_is_not_opened_with_a_key(tmp_path: Path, key: str) -> None:
    async with shoal.open(tmp_path / "state") as store:
        await store.space("crew").register("r").set(SECRET)
    before = content_of(tmp_path / "state")
    with pytest.raises(MasterKeyWrong, match="shoal encryption copy"):
        async with shoal.open(tmp_path / "state", encryption=key):
            pass
    assert content_of(tmp_path / "state") == before
    async with shoal.open(tmp_path / "state") as store:
        assert (await store.space("crew").register("r").get()) == SECRET


@pytest.mark.answers("encrypted-files-show-nothing")
@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "flipped"])
async def test_a_damaged_file_of_keys_is_reported_and_nothing_is_changed(tmp_path: Path, key: str, damage: str) -> None:
    async with shoal.open(tmp_path / "state", encryption=key) as store:
        await store.space("crew").register("r").set(SECRET)
    file = tmp_path / "state" / "KEYS"
    content = file.read_bytes()
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes({"empty": b"", "cut": content[:-9], "flipped": content[:-1] + bytes([content[-1] ^ 1])}[damage])
    left = file.read_bytes() if file.exists() else None
    with pytest.raises(StoreCorrupt, match="KEYS"):
        async with shoal.open(tmp_path / "state", encryption=key):
            pass
    assert (file.read_bytes() if file.exists() else None) == left
    file.write_bytes(content)
    async with shoal.open(tmp_path / "state", encryption=key) as store:
        assert (await store.space("crew").register("r").get()) == SECRET


async def test_a_directory_whose_making_was_cut_short_before_its_keys_is_made(tmp_path: Path, key: str) -> None:
    async with shoal.open(tmp_path / "state", encryption=key):
        pass
    (tmp_path / "state" / "KEYS").unlink()
    async with shoal.open(tmp_path / "state", encryption=key) as store:
        await store.space("crew").register("r").set(SECRET)
    async with shoal.open(tmp_path / "state", encryption=key) as store:
        assert (await store.space("crew").register("r").get()) == SECRET


def shoal_command(*arguments: str, key: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**clean_environment(), **({"SHOAL_ENCRYPTION_KEY": key} if key else {})}
    return forked.run(["-m", "shoal", *arguments], environment, timeout=PATIENCE_S)


@pytest.mark.answers("encrypted-files-show-nothing")
async def test_verify_proves_an_encrypted_directory_and_finds_a_changed_row(tmp_path: Path, key: str) -> None:
    state = str(tmp_path / "state")
    async with shoal.open(state, encryption=key) as store:
        await fill(store)
    assert shoal_command("verify", state, key=key).stdout.endswith("sound\n")
    refused = shoal_command("verify", state)
    assert refused.returncode != 0
    assert "SHOAL_ENCRYPTION_KEY" in refused.stderr
    opened = open_encrypted(Path(state), config=Config(encryption_key=key), now_ms=lambda: 0, entropy=urandom)
    place, row = next((place, row) for place, row in opened.inner.scan(b"O", b"P") if len(row) > 60)
    opened.inner.write({place: row[:-1] + bytes([row[-1] ^ 1])})
    opened.close()
    found = shoal_command("verify", state, key=key)
    assert found.returncode != 0
    assert "authentication" in found.stdout + found.stderr


def test_a_served_store_is_encrypted_and_commands_read_it(tmp_path: Path, key: str) -> None:
    with served(tmp_path / "state", "--encryption-key", key) as (process, url):
        assert shoal_command("save", "writer", f'{{"draft": "{SECRET}"}}', "--space", "crew", "--url", url).returncode == 0
        process.terminate()
        _, log = process.communicate(timeout=PATIENCE_S)
    assert not files_with(tmp_path / "state", SECRET.encode())
    assert (tmp_path / "master.key").read_text() not in log
    shown = shoal_command("show", "writer", "--space", "crew", "--data", str(tmp_path / "state"), key=key)
    assert SECRET in shown.stdout
    refused = shoal_command("show", "writer", "--space", "crew", "--data", str(tmp_path / "state"))
    assert refused.returncode != 0
    assert "encrypted" in refused.stderr


async def test_errors_and_objects_show_no_key(tmp_path: Path, key: str) -> None:
    secret = (tmp_path / "master.key").read_text()
    async with shoal.open(tmp_path / "state", encryption=key) as store:
        await fill(store)
        with pytest.raises(ShoalError) as raised:
            await store.space("crew").thread("t").load("0" * 64)
        texts = [repr(raised.value), str(raised.value)]
        mine = [each for each in gc.get_objects() if str(type(each).__module__).startswith("shoal.storage.encrypted")]
        texts += [repr(each) for each in mine]
        assert mine
        assert not [text for text in texts if secret in text or repr(bytes.fromhex(secret))[2:-1] in text]


def test_a_master_key_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "new.key"
    assert shoal_command("encryption", "key", str(file)).returncode == 0
    assert file.stat().st_mode & 0o777 == 0o600
    made = file.read_text()
    again = shoal_command("encryption", "key", str(file))
    assert again.returncode != 0
    assert "exists" in again.stderr
    assert file.read_text() == made


async def test_a_plain_store_is_copied_into_an_encrypted_one_and_back(tmp_path: Path, key: str) -> None:
    plain, sealed, back = (str(tmp_path / name) for name in ("plain", "sealed", "back"))
    async with shoal.open(plain) as store:
        await fill(store)
        shown = await contents(store)
    assert shoal_command("encryption", "copy", plain, sealed, "--new-key", key).returncode == 0
    assert shoal_command("encryption", "copy", sealed, back, key=key).returncode == 0
    assert not files_with(Path(sealed), SECRET.encode())
    for directory, encryption in ((sealed, key), (back, "")):
        assert shoal_command("verify", directory, key=encryption).stdout.endswith("sound\n")
        async with shoal.open(directory, encryption=encryption) as store:
            assert await contents(store) == shown
    refused = shoal_command("encryption", "copy", plain, sealed, "--new-key", key)
    assert refused.returncode != 0
    assert "exists" in refused.stderr
