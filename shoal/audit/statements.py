"""Statements: signing them, checking their signatures, and writing them as files.

A statement lists the heads of all logs, and is no Merkle root: an auditor who holds only an old statement needs the list
again to check a root. The chains are walked, which proves the content of each operation as well.

Laws:
- A signature covers everything that a statement says, and the hash of the statement before it. So the statements of one
  node form a chain: none of them can be taken out, and two with the same number convict the node, or whoever has its key.
- Roots of the state are signed with the rest. A statement without roots is one of an older version, under a domain of its own,
  so that roots can neither be taken from a statement nor be added to one.
- The key that a statement names proves nothing by itself: who checks compares it with one that is known.
"""

from __future__ import annotations

import base64
import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from shoal.errors import InvalidInput
from shoal.extras import needed
from shoal.protocol.requests import Statement

THREADS = "statements/"
"""Before the id of a node in hex: the thread of the space `RESERVED` whose journal is the statements that it keeps."""

SEED_BYTES = 32
_DOMAIN = b"shoal statement 2\x00"  # Nothing else that is signed begins with this,
_DOMAIN_WITHOUT_ROOTS = b"shoal statement 1\x00"  # or with this.
_encoder = msgspec.msgpack.Encoder()


def public_key(seed: bytes) -> bytes:
    """The public key, 32 bytes, that belongs to a private one."""
    with needed():
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key: bytes = Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()
    return key


def signed(statement: Statement, seed: bytes) -> Statement:
    """The statement with its key and signature."""
    with needed():
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private = Ed25519PrivateKey.from_private_bytes(seed)
    return msgspec.structs.replace(
        statement, key=private.public_key().public_bytes_raw(), signature=private.sign(_message(statement))
    )


def is_signed(statement: Statement) -> bool:
    """Whether the signature is that of the statement's key."""
    with needed():
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(statement.key).verify(statement.signature, _message(statement))
    except (InvalidSignature, ValueError):
        return False
    return True


def digest(statement: Statement) -> bytes:
    """SHA-256 of a statement, by which the next one of its node names it."""
    return sha256(_message(statement) + statement.signature).digest()


def to_text(statement: Statement) -> str:
    """A statement as JSON in one line; bytes are hex digits, keys and signatures too."""
    return json.dumps(_hexed(msgspec.structs.asdict(statement)), separators=(",", ":"))


def from_text(text: str | bytes) -> Statement:
    """The statement in a text from `to_text`.

    Raises:
        InvalidInput: it is none.
    """
    try:
        found = json.loads(text)
        heads = [[each[0], _bytes(each[1]), each[2], each[3], _bytes(each[4])] for each in found["heads"]]
        fields = {name: _bytes(found[name]) for name in ("node", "previous", "key", "signature")}
        own = [_bytes(each) for each in found["own"]]
        packed = ["statement", fields["node"], found["number"], found["time_ms"], fields["previous"], own, heads]
        roots = found.get("roots") and [[each[0], *map(_bytes, each[1:4]), [*map(_bytes, each[4])]] for each in found["roots"]]
        return msgspec.convert([*packed, fields["key"], fields["signature"], roots], Statement)
    except (ValueError, TypeError, LookupError):  # msgspec's own errors are ValueErrors.
        raise InvalidInput("this is no statement: `shoal audit sign` writes one. Nothing was checked.") from None


def read(file: Path) -> Statement:
    """The statement in a file.

    Raises:
        InvalidInput: it cannot be read, or holds none.
    """
    try:
        return from_text(file.read_bytes())
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read: {error.strerror}. Nothing was checked.") from None
    except InvalidInput:
        raise InvalidInput(f"{file} holds no statement: `shoal audit sign` writes one. Nothing was checked.") from None


def fingerprint(key: bytes) -> str:
    """A public key, for people: as `ssh-keygen -l` shows one."""
    return "SHA256:" + base64.b64encode(sha256(key).digest()).decode().rstrip("=")


def _message(statement: Statement) -> bytes:
    bare = msgspec.structs.replace(statement, key=b"", signature=b"")
    if bare.roots is not None:
        return _DOMAIN + _encoder.encode(bare)
    return _DOMAIN_WITHOUT_ROOTS + _encoder.encode([bare.__struct_config__.tag, *msgspec.structs.astuple(bare)[:-1]])


def _bytes(text: Any) -> bytes:
    if not isinstance(text, str):
        raise TypeError
    return bytes.fromhex(text)


def _hexed(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {name: _hexed(each) for name, each in value.items()}
    if isinstance(value, msgspec.Struct):
        return [_hexed(each) for each in msgspec.structs.astuple(value)]
    if isinstance(value, list):
        return [_hexed(each) for each in value]
    return value
