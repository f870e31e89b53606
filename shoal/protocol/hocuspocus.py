"""The protocol of Hocuspocus's provider, byte for byte: y-websocket's messages of many documents on one WebSocket.

    message    address, then
      0 1 3        as in y-websocket
      2 auth       from a client: 0, token, version (since 4); to it: 1 denied, reason | 2 accepted, scope
      5 stateless  a text for an application's server; ignored here
      7 close      ends one document: from a client without content, to it with a reason (2 does not know it)
      8 status     to a client, for an update that it sent: 1 durable, 0 rejected
      9 ping, 10 pong   alone, without an address; ignored here

An address is the document's name, or the name, a zero byte and an identifier of the provider. Numbers, texts and byte
strings are as in `shoal.protocol.yjs`.

Law: for any bytes, `decode` returns a message or raises InvalidValue.
"""

from __future__ import annotations

from typing import Literal

from shoal.errors import InvalidValue
from shoal.protocol.yjs import Reader, pack_number, sized
from shoal.records import NamedTuple

_AUTH, _CLOSE, _STATUS = 2, 7, 8
_TOKEN, _DENIED, _ACCEPTED = 0, 1, 2
_ALONE = (b"\x09", b"\x0a")

ADDRESS_BYTES_MAX = 2048
"""Of an address: more than the longest name and an identifier need."""

Scope = Literal["read-write", "readonly"]


class Open(NamedTuple):
    """Opens a document with a token, which may be empty. `version` is the provider's; empty before 4."""

    token: str
    version: str = ""


class Close(NamedTuple):
    """The client leaves the document."""


class Said(NamedTuple):
    """Messages of y-websocket, for `shoal.protocol.yjs.decode`."""

    messages: bytes


class Addressed(NamedTuple):
    """A message about one document."""

    address: bytes
    said: Open | Close | Said


def decode(data: bytes) -> Addressed | None:
    """Read one WebSocket message; None if it concerns no document.

    Raises:
        InvalidValue: the bytes are not a message of the protocol.
    """
    if data in _ALONE:
        return None
    reader = Reader(data)
    address = reader.bytes()
    if len(address) > ADDRESS_BYTES_MAX:
        raise InvalidValue(f"an address has {len(address)} bytes; {ADDRESS_BYTES_MAX} are allowed. Nothing was written.")
    rest = reader.rest()
    match reader.number():
        case 2 if reader.number() == _TOKEN:
            token = _text(reader.bytes())
            return Addressed(address, Open(token, _text(reader.bytes()) if reader.left else ""))
        case 2:
            return None  # Clients send tokens only.
        case 7:
            return Addressed(address, Close())
        case _:
            return Addressed(address, Said(rest))


def document_of(address: bytes) -> str:
    """The name of the document that an address means.

    Raises:
        InvalidValue: it is not UTF-8.
    """
    return _text(address).partition("\0")[0]


def asks(messages: bytes) -> bool:
    """Whether messages begin with a step 1, with which a provider asks for a document."""
    return messages[:2] == b"\x00\x00"


def prefix(address: bytes) -> bytes:
    """The bytes that precede each message for an address."""
    return sized(address)


def encode_accepted(scope: Scope) -> bytes:
    """The token is accepted."""
    return bytes((_AUTH, _ACCEPTED)) + sized(scope.encode())


def encode_denied(reason: str) -> bytes:
    """The document is not opened."""
    return bytes((_AUTH, _DENIED)) + sized(reason.encode(errors="replace"))


def encode_status(*, durable: bool) -> bytes:
    """An update that the client sent is durable, or rejected."""
    return pack_number(_STATUS) + pack_number(int(durable))


def encode_close(reason: str) -> bytes:
    """The node leaves the document."""
    return pack_number(_CLOSE) + sized(reason.encode(errors="replace"))


def _text(octets: bytes) -> str:
    try:
        return octets.decode()
    except UnicodeDecodeError:
        raise InvalidValue("a text of Hocuspocus's protocol is not UTF-8. Nothing was written.") from None
