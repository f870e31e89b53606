"""The file of a directory's keys: what unlocks it, what a damaged one says, and that a key is durable before it is used."""

from __future__ import annotations

import traceback
import zlib
from pathlib import Path

import pytest

from shoal.errors import MasterKeyWrong, StorageFull, StoreCorrupt
from shoal.storage.encrypted.keyring import KeysFile, KeysInMemory
from shoal.storage.encrypted.rows import RowCipher
from tests.storage.encrypted.conftest import MASTER, OpenKeys

OTHER = b"other" * 6 + b"ab"


class FullHome(KeysInMemory):
    """A disk that is full from some moment on."""

    is_full = False

    def replace(self, content: bytes, /) -> None:
        if self.is_full:
            raise OSError(28, "No space left on device")
        super().replace(content)


def test_keys_are_the_same_after_the_file_is_unlocked_again(open_keys: OpenKeys) -> None:
    home = KeysInMemory()
    made = open_keys(home).ensure(b"crew")
    assert open_keys(home).find(b"crew") == made
    assert made.current.made_ms == 0


def test_a_wrong_master_key_is_told_from_the_right_one_by_fingerprints(open_keys: OpenKeys) -> None:
    home = KeysInMemory()
    right = open_keys(home).master
    before = home.content
    with pytest.raises(MasterKeyWrong, match=right):
        open_keys(home, OTHER)
    assert home.content == before


def test_any_of_several_master_keys_unlocks_and_the_first_wraps(open_keys: OpenKeys) -> None:
    home = KeysInMemory()
    made = open_keys(home).ensure(b"crew")
    both = open_keys(home, OTHER, MASTER)
    assert both.find(b"crew") == made
    both.adopt(both.renewed())
    assert open_keys(home, OTHER).find(b"crew") == made
    with pytest.raises(MasterKeyWrong):
        open_keys(home, MASTER)


@pytest.mark.parametrize("cut", [0, 4, 11, 12, 40, -1])
def test_a_truncated_file_is_refused(open_keys: OpenKeys, cut: int) -> None:
    home = KeysInMemory()
    open_keys(home).ensure(b"crew")
    assert home.content is not None
    with pytest.raises(StoreCorrupt, match="KEYS"):
        open_keys(KeysInMemory(home.content[:cut]))


def test_a_flipped_bit_anywhere_is_refused(open_keys: OpenKeys) -> None:
    home = KeysInMemory()
    open_keys(home).ensure(b"crew")
    content = home.content or b""
    for at in range(len(content)):
        flipped = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
        with pytest.raises(StoreCorrupt):
            open_keys(KeysInMemory(flipped))


def test_a_forged_file_with_a_right_checksum_is_refused(open_keys: OpenKeys) -> None:
    home = KeysInMemory()
    open_keys(home).ensure(b"crew")
    content = home.content or b""
    packed = content[12:-1] + bytes([content[-1] ^ 1])
    with pytest.raises((StoreCorrupt, MasterKeyWrong)):
        open_keys(KeysInMemory(b"SHOALKEY" + zlib.crc32(packed).to_bytes(4, "big") + packed))


def test_a_key_that_cannot_be_made_durable_seals_nothing(open_keys: OpenKeys) -> None:
    home = FullHome()
    keyring = open_keys(home)
    home.is_full = True
    with pytest.raises(StorageFull, match="No row was written"):
        RowCipher(keyring, lambda count: bytes(count)).seal(b"M", (b"crew",), b"text")
    assert keyring.find(b"crew") is None
    home.is_full = False
    assert open_keys(home).find(b"crew") is None


def test_numbers_of_keys_are_never_used_again(open_keys: OpenKeys) -> None:
    home = KeysInMemory()
    keyring = open_keys(home)
    first = keyring.ensure(b"crew").current.number
    keyring.adopt(keyring.renewed(), destroyed=[first])
    assert keyring.find(b"crew") is None
    assert open_keys(home).ensure(b"crew").current.number > first


def test_destroyed_keys_open_nothing_under_the_new_file(open_keys: OpenKeys) -> None:
    home = KeysInMemory()
    keyring = open_keys(home)
    cipher = RowCipher(keyring, lambda count: b"n" * count)
    row = cipher.seal(b"M", (b"crew",), b"text")
    assert cipher.open(b"M", row) == b"text"
    keyring.adopt(keyring.renewed(), destroyed=[keyring.ensure(b"crew").current.number])
    for reader in (cipher, RowCipher(open_keys(home), lambda count: bytes(count))):
        reader.live(b"other")  # It sees that the keys have changed.
        with pytest.raises(StoreCorrupt, match="does not have"):
            reader.open(b"M", row)


def test_the_number_of_keys_is_bounded(open_keys: OpenKeys) -> None:
    keyring = open_keys(KeysInMemory(), keys_max=2)
    keyring.ensure(b"a")
    keyring.ensure(b"b")
    with pytest.raises(StorageFull, match="has 2 data keys, and 2 are possible"):
        keyring.ensure(b"c")


@pytest.mark.answers("encrypted-files-show-nothing")
def test_nothing_shows_a_key(open_keys: OpenKeys) -> None:
    home = KeysInMemory()
    keyring = open_keys(home)
    keys = keyring.ensure(b"crew")
    secrets = [MASTER, keys.naming, keys.current.secret]
    shown = repr([keyring, keys, keys.current, keyring.scopes, vars(keyring)["_directory"]])
    with pytest.raises(MasterKeyWrong) as raised:
        open_keys(home, OTHER)
    shown += "".join(traceback.format_exception(raised.value))
    for secret in [*secrets, OTHER]:
        assert secret.hex() not in shown
        assert repr(secret)[2:-1] not in shown
    assert all(secret not in (home.content or b"") for secret in secrets)


def test_the_file_is_replaced_as_a_whole(tmp_path: Path, open_keys: OpenKeys) -> None:
    home = KeysFile(tmp_path)
    assert home.read() is None
    home.replace(b"one")
    home.replace(b"two")
    assert home.read() == b"two"
    assert [file.name for file in tmp_path.iterdir()] == ["KEYS"]


def test_a_file_that_is_half_written_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = KeysFile(tmp_path)
    home.replace(b"one")

    def fail(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="No space"):
        home.replace(b"two")
    assert home.read() == b"one"
