"""The master key, under which a directory's keys are wrapped, and where it comes from.

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
from collections.abc import Callable, Sequence
from hashlib import sha256
from importlib import import_module
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from shoal.encryption import KeyService
from shoal.errors import MasterKeyWrong

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
        raise _wrong(f"the key file {path} cannot be read: {error.strerror}") from None


def _from_environment(name: str) -> bytes:
    text = os.environ.get(name)
    if not text:
        raise _wrong(f"the environment variable {name} is not set")
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
