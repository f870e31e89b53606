"""The data keys of a directory, and the master key that wraps them.

The data keys of a directory, and the file that keeps them: KEYS.

    KEYS    magic₈ crc32₄, then msgpack [format, name of the master key, wrapped directory key, nonce₁₂ and ciphertext]

Each scope (a space, or the store itself) has data keys, of which the last seals new rows, and a naming key, which hides
parts of row keys. All are sealed by the directory key (AES-256-GCM), which the master key wraps.

Laws:
- A key is durable in the file before a row is sealed under it.
- The file is replaced as a whole, and synced. RocksDB keeps deleted bytes in old files, so no key is ever in RocksDB.
- Keys leave the file only under a new directory key: who finds the old file on the disk and the new directory key
  cannot open it.
- No number of a data key is used twice in a directory.

The master key, under which a directory's keys are wrapped, and where it comes from.

Laws:
- A key never leaves this module in an error, a log or a `repr`; a key is named by its fingerprint.
- A source may give several keys. The first wraps, and all unwrap, so that a key can be replaced while the old one is
  still there.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import shlex
import subprocess
import threading
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Protocol

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from shoal.encryption import KeyService
from shoal.errors import MasterKeyWrong, StorageFull, StoreCorrupt
from shoal.raising import named
from shoal.records import NamedTuple
from shoal.storage import layout

KEY_BYTES = 32
NONCE_BYTES = 12
_FINGERPRINT_BYTES = 8
_CONTEXT = b"shoal directory key"
_KEYS_MAX = 16  # In one source.
_TEXT_BYTES_MAX = 4096
_HEX = re.compile(rb"[0-9a-fA-F]{64}")

Entropy = Callable[[int], bytes]


class LocalKeys:
    """Keys in this process, of 32 bytes each: AES-256-GCM with random nonces."""

    __slots__ = ("_ciphers", "_entropy", "name")

    def __init__(self, keys: Sequence[bytes], entropy: Entropy) -> None:
        self._entropy = entropy
        self._ciphers = {_fingerprint(key): AESGCM(key) for key in keys}
        self.name = _fingerprint(keys[0]).hex()

    def wrap(self, key: bytes, /) -> bytes:
        """Encrypt 32 bytes, with authentication (`KeyService.wrap`): fingerprint₈ nonce₁₂ ciphertext."""
        fingerprint, nonce = bytes.fromhex(self.name), self._entropy(NONCE_BYTES)
        return fingerprint + nonce + self._ciphers[fingerprint].encrypt(nonce, key, _CONTEXT)

    def unwrap(self, wrapped: bytes, /) -> bytes:
        """The 32 bytes (`KeyService.unwrap`)."""
        fingerprint, rest = wrapped[:_FINGERPRINT_BYTES], wrapped[_FINGERPRINT_BYTES:]
        cipher = self._ciphers.get(fingerprint)
        if cipher is None:
            given = ", ".join(each.hex() for each in self._ciphers)
            raise MasterKeyWrong(
                f"the directory's keys are wrapped by master key {fingerprint.hex()}, and the one that was given is {given}. "
                "Nothing was written. Give the right key."
            )
        try:
            return cipher.decrypt(rest[:NONCE_BYTES], rest[NONCE_BYTES:], _CONTEXT)
        except (InvalidTag, ValueError):
            raise MasterKeyWrong(
                f"the directory's key does not unwrap under master key {fingerprint.hex()}. Nothing was written. "
                "Restore the KEYS file from a backup."
            ) from None


def service_of(source: str, entropy: Entropy) -> KeyService:
    """The master key from a source: `file:PATH`, `env:NAME`, `command:COMMAND` or `plugin:MODULE:NAME`.

    The first three give text: a key per line, as 64 hex digits or as base64 of 32 bytes; the first line is the key in force.
    A plug-in is a callable without arguments that returns a `KeyService`.

    Raises:
        MasterKeyWrong: the source is none of these, cannot be read, or gives no key.
    """
    kind, colon, rest = source.partition(":")
    read = _SOURCES.get(kind)
    if not colon or not rest or (read is None and kind != "plugin"):
        # The text is not shown: it may be a key.
        raise _wrong("the encryption key must be given as file:PATH, env:NAME, command:COMMAND or plugin:MODULE:NAME")
    if read is None:
        return _plugin(rest)
    return LocalKeys(_parsed(read(rest), f"{kind}:{rest}" if kind != "command" else "the command"), entropy)


def _from_file(path: str) -> bytes:
    try:
        with open(Path(path).expanduser(), "rb") as file:
            return file.read(_TEXT_BYTES_MAX + 1)
    except OSError as error:
        raise _wrong(f"the key file {named(path)} cannot be read: {error.strerror}") from None


def _from_environment(name: str) -> bytes:
    text = os.environ.get(name)
    if not text:
        raise _wrong(f"the environment variable {named(name)} is not set")
    return os.fsencode(text)


def _from_command(command: str) -> bytes:
    try:
        done = subprocess.run(shlex.split(command), stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise _wrong(f"the command that prints the master key failed: {type(error).__name__}") from None
    if done.returncode:
        raise _wrong(f"the command that prints the master key ended with code {done.returncode}")
    return done.stdout


_SOURCES: dict[str, Callable[[str], bytes]] = {"file": _from_file, "env": _from_environment, "command": _from_command}


def _parsed(text: bytes, where: str) -> list[bytes]:
    if len(text) > _TEXT_BYTES_MAX:
        raise _wrong(f"{where} gives more than {_TEXT_BYTES_MAX} bytes, so it is no key")
    lines = [line.strip() for line in text.splitlines()]
    keys = [_key_in(line, where) for line in lines if line and not line.startswith(b"#")]
    if not 1 <= len(keys) <= _KEYS_MAX:
        raise _wrong(f"{where} gives {len(keys)} keys, and 1 to {_KEYS_MAX} are possible")
    return keys


def _key_in(line: bytes, where: str) -> bytes:
    if _HEX.fullmatch(line):
        return bytes.fromhex(line.decode())
    try:
        key = base64.b64decode(line, validate=True)
    except binascii.Error:
        key = b""
    if len(key) != KEY_BYTES:
        raise _wrong(f"{where} gives a line that is no key: 64 hex digits, or base64 of {KEY_BYTES} bytes")
    return key


def _plugin(place: str) -> KeyService:
    module, _, name = place.partition(":")
    try:
        service = getattr(import_module(module), name)()
    except MasterKeyWrong:
        raise
    except Exception as error:  # It is somebody else's code.
        raise _wrong(f"the plug-in {place} cannot be used: {type(error).__name__}") from None
    if not isinstance(service, KeyService):
        raise _wrong(f"the plug-in {place} returned a {type(service).__name__} without name, wrap and unwrap")
    return service


def _wrong(what: str) -> MasterKeyWrong:
    return MasterKeyWrong(f"{what}. Nothing was written. See docs/ENCRYPTION.md.")


def _fingerprint(key: bytes) -> bytes:
    return sha256(b"shoal master key" + key).digest()[:_FINGERPRINT_BYTES]


_MAGIC = b"SHOALKEY"
_FORMAT = 1
_CHECKSUM_BYTES = 4
_SEALED_AS = b"shoal data keys 1"


class DataKey(msgspec.Struct, array_like=True, frozen=True):
    """A key that seals rows."""

    number: int  # From 1.
    secret: bytes
    made_ms: int  # When: the node's wall clock.

    def __repr__(self) -> str:
        return f"<data key {self.number}>"


class ScopeKeys(msgspec.Struct, array_like=True, frozen=True):
    """The keys of a scope."""

    scope: bytes
    naming: bytes
    keys: tuple[DataKey, ...]  # The last one seals new rows.

    @property
    def current(self) -> DataKey:
        """The key that seals new rows."""
        return self.keys[-1]

    def __repr__(self) -> str:
        return f"<{len(self.keys)} data keys of {self.scope!r}>"


class _Sealed(msgspec.Struct, array_like=True, frozen=True):
    next_number: int
    scopes: list[ScopeKeys]


class _File(msgspec.Struct, array_like=True, frozen=True):
    format: int
    master: str
    wrapped: bytes
    sealed: bytes


class _DirectoryKey(NamedTuple):
    """The key that seals the file's keys. Its `repr` shows nothing, because a cipher's does not."""

    cipher: AESGCM
    wrapped: bytes
    master: str  # The name of the master key that wrapped it.
    service: KeyService


class KeysHome(Protocol):
    """Where the file is: on a disk, or in a simulated one."""

    def read(self) -> bytes | None:
        """The file; None if there is none."""
        ...

    def replace(self, content: bytes, /) -> None:
        """Replace it, atomically and durably.

        Raises:
            OSError: the old file is there, unless only the last sync failed.
        """
        ...


class KeysFile:
    """The file in a directory."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / layout.KEYS

    def read(self) -> bytes | None:
        """The file; None if there is none (`KeysHome.read`)."""
        try:
            return self._path.read_bytes()
        except FileNotFoundError:
            return None

    def replace(self, content: bytes, /) -> None:
        """Replace it, atomically and durably (`KeysHome.replace`)."""
        layout.replace_file(self._path, content)


class KeysInMemory:
    """A file that is no file, for tests and the simulator."""

    def __init__(self, content: bytes | None = None) -> None:
        self.content = content

    def read(self) -> bytes | None:
        """The file; None if there is none (`KeysHome.read`)."""
        return self.content

    def replace(self, content: bytes, /) -> None:
        """Replace it, atomically and durably (`KeysHome.replace`)."""
        self.content = content


class Keyring:
    """The keys of one opening. Its methods may be called from any thread; `renewed` and `adopt` say where to block."""

    def __init__(
        self, home: KeysHome, master: KeyService, *, entropy: Entropy, now_ms: Callable[[], int], keys_max: int
    ) -> None:
        """Unlock the file, or make one.

        Raises:
            MasterKeyWrong: the master key does not unwrap it, or cannot be fetched. Nothing was written.
            StoreCorrupt: the file is damaged.
            StorageFull: there was no file, and it cannot be written.
        """
        self._home = home
        self._entropy = entropy
        self._now_ms = now_ms
        self._keys_max = keys_max
        self._guard = threading.Lock()
        self.version = 0
        """Grows with each change of the keys."""
        found = home.read()
        if found is None:
            self._next_number, self._scopes = 1, dict[bytes, ScopeKeys]()
            self._directory = _made(master, entropy)
            self._write(self._next_number, self._scopes, self._directory)
        else:
            file = _unpacked(found)
            self._directory, sealed = _unlocked(file, master)
            self._next_number = sealed.next_number
            self._scopes = {each.scope: each for each in sealed.scopes}
        self._secrets = _secrets(self._scopes)

    @property
    def master(self) -> str:
        """The name of the master key under which the file is wrapped."""
        return self._directory.master

    @property
    def service(self) -> KeyService:
        """The service of the master key under which the file is wrapped."""
        return self._directory.service

    @property
    def scopes(self) -> Mapping[bytes, ScopeKeys]:
        """All scopes that have keys."""
        return self._scopes

    def find(self, scope: bytes) -> ScopeKeys | None:
        """The keys of a scope; None if it has none: nothing was ever written in it, or it was erased."""
        return self._scopes.get(scope)

    def secret(self, number: int) -> bytes | None:
        """A data key; None if this directory does not have it (any more)."""
        return self._secrets.get(number)

    def ensure(self, scope: bytes) -> ScopeKeys:
        """The keys of a scope, which are made if there are none. Blocks for the disk then.

        Raises:
            StorageFull: the keys cannot be written, or are too many. There are no new keys.
        """
        with self._guard:
            if scope not in self._scopes:
                self._change([ScopeKeys(scope, self._entropy(KEY_BYTES), ())])
            return self._scopes[scope]

    def rotate(self, scopes: Iterable[bytes]) -> None:
        """Give each of these scopes a new data key, which seals new rows. Blocks for the disk.

        Raises:
            StorageFull: the keys cannot be written, or are too many. There are no new keys.
        """
        with self._guard:
            self._change([self._scopes[scope] for scope in scopes if scope in self._scopes])

    def renewed(self, master: KeyService | None = None) -> _DirectoryKey:
        """A new directory key, wrapped by the master key, or by a new master key. It is not in use before `adopt`. Blocks.

        Raises:
            MasterKeyWrong: the master key cannot wrap it.
        """
        service = self._directory.service if master is None else master
        return _made(service, self._entropy)

    def adopt(self, directory: _DirectoryKey, *, destroyed: Iterable[int] = ()) -> None:
        """Write the file under a new directory key, without some data keys. Blocks for the disk.

        A scope that loses its last key loses its naming key, too.

        Raises:
            StorageFull: the file cannot be written. Nothing has changed.
        """
        gone = frozenset(destroyed)
        with self._guard:
            scopes = {
                scope: msgspec.structs.replace(each, keys=tuple(key for key in each.keys if key.number not in gone))
                for scope, each in self._scopes.items()
            }
            self._take(self._next_number, {scope: each for scope, each in scopes.items() if each.keys}, directory)

    def _change(self, scopes: list[ScopeKeys]) -> None:
        """Write the file with a new data key for each of these."""
        number, now_ms = self._next_number, self._now_ms()
        if len(self._secrets) + len(scopes) > self._keys_max:
            raise StorageFull(
                f"the directory has {len(self._secrets):,} data keys, and {self._keys_max:,} are possible, one for each space. "
                "Nothing was written. Raise encryption_keys_max, then open the store again."
            )
        made = {
            each.scope: msgspec.structs.replace(each, keys=(*each.keys, DataKey(nth, self._entropy(KEY_BYTES), now_ms)))
            for nth, each in enumerate(scopes, number)
        }
        self._take(number + len(made), {**self._scopes, **made}, self._directory)

    def _take(self, next_number: int, scopes: dict[bytes, ScopeKeys], directory: _DirectoryKey) -> None:
        self._write(next_number, scopes, directory)
        self._next_number, self._scopes, self._directory = next_number, scopes, directory
        self._secrets = _secrets(scopes)
        self.version += 1

    def _write(self, next_number: int, scopes: dict[bytes, ScopeKeys], directory: _DirectoryKey) -> None:
        nonce = self._entropy(NONCE_BYTES)
        plain = msgspec.msgpack.encode(_Sealed(next_number, list(scopes.values())))
        sealed = nonce + directory.cipher.encrypt(nonce, plain, _SEALED_AS)
        packed = msgspec.msgpack.encode(_File(_FORMAT, directory.master, directory.wrapped, sealed))
        try:
            self._home.replace(_MAGIC + zlib.crc32(packed).to_bytes(_CHECKSUM_BYTES, "big") + packed)
        except OSError as error:
            raise StorageFull(
                f"the file of the directory's keys cannot be written: {error.strerror or error}. No row was written. "
                "Free some space, then open the store again."
            ) from error


def _made(master: KeyService, entropy: Entropy) -> _DirectoryKey:
    secret = entropy(KEY_BYTES)
    return _DirectoryKey(AESGCM(secret), master.wrap(secret), master.name, master)


def _secrets(scopes: Mapping[bytes, ScopeKeys]) -> dict[int, bytes]:
    return {key.number: key.secret for each in scopes.values() for key in each.keys}


def _unpacked(content: bytes) -> _File:
    at = len(_MAGIC) + _CHECKSUM_BYTES
    packed = content[at:]
    if content[: len(_MAGIC)] != _MAGIC or content[len(_MAGIC) : at] != zlib.crc32(packed).to_bytes(_CHECKSUM_BYTES, "big"):
        raise _damaged("does not pass its checksum")
    try:
        file = msgspec.msgpack.decode(packed, type=_File)
    except ValueError:
        raise _damaged("cannot be decoded") from None
    if file.format != _FORMAT:
        raise _damaged(f"has format {file.format}, and this version reads {_FORMAT}")
    return file


def _unlocked(file: _File, master: KeyService) -> tuple[_DirectoryKey, _Sealed]:
    secret = master.unwrap(file.wrapped)
    if len(secret) != KEY_BYTES:
        raise MasterKeyWrong(
            f"the master key unwrapped {len(secret)} bytes, not {KEY_BYTES}. Nothing was written. Give the right key."
        )
    cipher = AESGCM(secret)
    try:
        plain = cipher.decrypt(file.sealed[:NONCE_BYTES], file.sealed[NONCE_BYTES:], _SEALED_AS)
        return _DirectoryKey(cipher, file.wrapped, file.master, master), msgspec.msgpack.decode(plain, type=_Sealed)
    except (InvalidTag, ValueError):
        raise _damaged("does not open under the key that it names") from None


def _damaged(how: str) -> StoreCorrupt:
    return StoreCorrupt(
        f"the file {layout.KEYS}, which has the directory's keys, {how}. Nothing was written. Without it no row can be "
        f"read: restore {layout.KEYS} or the whole directory from a backup, or rebuild the directory from the other nodes."
    )
