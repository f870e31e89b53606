"""Where a master key comes from, and what a wrong source says."""

from __future__ import annotations

import base64
import sys
from os import urandom
from pathlib import Path

import pytest

from shoal.encryption import KeyService
from shoal.errors import MasterKeyWrong
from shoal.storage.encrypted.keyring import LocalKeys, service_of

KEY = bytes(range(32))


class FakeService:
    """A key service elsewhere, in small: it hands out handles and never its key."""

    name = "fake/1"

    def __init__(self) -> None:
        self.handles: dict[bytes, bytes] = {}

    def wrap(self, key: bytes, /) -> bytes:
        handle = urandom(16)
        self.handles[handle] = key
        return handle

    def unwrap(self, wrapped: bytes, /) -> bytes:
        if wrapped not in self.handles:
            raise MasterKeyWrong("the fake service does not know this handle. Nothing was written.")
        return self.handles[wrapped]


def broken() -> KeyService:
    raise ValueError("a secret text")


def no_service() -> str:
    return "text"


def same(service: KeyService) -> bool:
    """Whether it unwraps what `KEY` wraps, and the other way round."""
    own = LocalKeys([KEY], urandom)
    return service.unwrap(own.wrap(b"d" * 32)) == own.unwrap(service.wrap(b"d" * 32)) == b"d" * 32


@pytest.mark.parametrize("text", [KEY.hex(), base64.b64encode(KEY).decode(), f"# made today\n\n {KEY.hex()} \n{'ab' * 32}\n"])
def test_a_key_is_read_from_each_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    file = tmp_path / "master.key"
    file.write_text(text)
    monkeypatch.setenv("MASTER", text)
    command = f"command:{sys.executable} -c \"print(open('{file}').read())\""
    for source in (f"file:{file}", "env:MASTER", command):
        assert same(service_of(source, urandom))


def test_a_plug_in_wraps_and_unwraps() -> None:
    service = service_of(f"plugin:{__name__}:{FakeService.__name__}", urandom)
    assert service.unwrap(service.wrap(b"d" * 32)) == b"d" * 32
    assert service.name == "fake/1"


@pytest.mark.parametrize(
    "source",
    [
        KEY.hex(),  # The key itself, where its source belongs.
        "file:",
        "file:/nowhere/master.key",
        "env:SHOAL_NO_SUCH_VARIABLE",
        "command:/nowhere/command",
        f"command:{sys.executable} -c 'import sys; print(\"secret\"); sys.exit(3)'",
        f"plugin:{__name__}:{broken.__name__}",
        f"plugin:{__name__}:{no_service.__name__}",
        "plugin:no.such.module:it",
    ],
)
def test_a_source_that_gives_no_key_is_refused_and_not_repeated(source: str) -> None:
    with pytest.raises(MasterKeyWrong, match="Nothing was written") as refused:
        service_of(source, urandom)
    assert KEY.hex() not in refused.value.message
    assert "secret" not in refused.value.message


@pytest.mark.parametrize("text", ["", "# none\n", "abc", "zz" * 32, KEY.hex()[:-2], KEY.hex() + "\nsecret", "ab" * 5000])
def test_text_that_is_no_key_is_refused_and_not_repeated(tmp_path: Path, text: str) -> None:
    file = tmp_path / "master.key"
    file.write_text(text)
    with pytest.raises(MasterKeyWrong) as refused:
        service_of(f"file:{file}", urandom)
    assert KEY.hex()[:20] not in refused.value.message
    assert "secret" not in refused.value.message


def test_a_damaged_wrapped_key_is_refused() -> None:
    own = LocalKeys([KEY], urandom)
    wrapped = own.wrap(b"d" * 32)
    with pytest.raises(MasterKeyWrong):
        own.unwrap(wrapped[:-1] + bytes([wrapped[-1] ^ 1]))
    with pytest.raises(MasterKeyWrong):
        own.unwrap(wrapped[:20])
