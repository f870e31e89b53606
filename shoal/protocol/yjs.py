"""The protocols between a standard Yjs client and a server, byte for byte: y-websocket's, and Hocuspocus's around it.

    message    kind, then
      0 sync        0 state vector (step 1) | 1 update (step 2) | 2 update
      1 awareness   update: count, then for each entry client, clock, JSON of its state ("null" if it is gone)
      2 auth        ignored here
      3 query awareness
      100 durable   from a client, without content: acknowledge my updates from now on; to it: a count, so many of
                    the updates that it sent since, from the first, are durable

Numbers are lib0's: 7 bits to a byte, the lowest first. Byte strings and strings
are preceded by their length. One WebSocket message may hold several messages.

Laws:
- For any bytes, `decode` returns messages or raises InvalidValue.
- The bytes after a message of unknown kind cannot be read and are ignored, as
  standard servers do.
- Reading one WebSocket message takes little time, whatever it says: its messages and presence entries are bounded.

The protocol of Hocuspocus's provider, byte for byte: y-websocket's messages of many documents on one WebSocket.

    message    address, then
      0 1 3        as in y-websocket
      2 auth       from a client: 0, token, version (since 4); to it: 1 denied, reason | 2 accepted, scope
      5 stateless  a text for an application's server; ignored here
      7 close      ends one document: from a client without content, to it with a reason (2 does not know it)
      8 status     to a client, for an update that it sent: 1 durable, 0 rejected
      9 ping, 10 pong   alone, without an address; ignored here

An address is the document's name, or the name, a zero byte and an identifier of the provider. Numbers, texts and byte
strings are as above.

Law: for any bytes, `decode_named` returns a message or raises InvalidValue.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, NoReturn

from shoal.errors import InvalidValue
from shoal.kinds.document.state import readiness, yjs
from shoal.kinds.presence.state import GONE as GONE
from shoal.protocol.requests import Present
from shoal.records import NamedTuple

DURABLE = 100
"""The kind of acknowledgements, above all kinds that the protocol has assigned."""

MESSAGES_MAX = 256
"""In one WebSocket message. Standard clients send one."""
PIECE_STRUCTS = 2000
"""Items in one piece of an update that is too large for one operation."""
ENTRIES_MAX = 4096
"""Of presence, in one message. Standard clients send their own."""

_SYNC, _AWARENESS, _AUTH, _QUERY = 0, 1, 2, 3
_STEP_1, _STEP_2, _UPDATE = 0, 1, 2
_NUMBER_MAX = 2**53 - 1


class Step1(NamedTuple):
    """The state vector of the other side, which asks for the updates that it lacks."""

    state: bytes


class Update(NamedTuple):
    """An update of a document: an edit, or the answer to our step 1."""

    update: bytes
    answers: bool  # Whether it answers our step 1, with all that we lacked.


class Awareness(NamedTuple):
    """Entries of clients that are present, or gone."""

    entries: list[Present]


class QueryAwareness(NamedTuple):
    """Asks for all entries."""


class AskDurable(NamedTuple):
    """Asks for acknowledgements from now on."""


Message = Step1 | Update | Awareness | QueryAwareness | AskDurable


def decode(data: bytes) -> list[Message]:
    """Read the messages of one WebSocket message.

    Raises:
        InvalidValue: the bytes are not messages of the protocol.
    """
    messages: list[Message] = []
    reader = Reader(data)
    while reader.left:
        message = _message(reader)
        if message is None:
            break
        if len(messages) == MESSAGES_MAX:
            _refuse(f"it holds more than {MESSAGES_MAX} messages")
        messages.append(message)
    return messages


def _message(reader: Reader) -> Message | None:
    match reader.number():
        case 0:
            return _sync(reader)
        case 1:
            return Awareness(_entries(Reader(reader.bytes())))
        case 3:
            return QueryAwareness()
        case 100:
            return AskDurable()
        case _:
            return None


def _sync(reader: Reader) -> Step1 | Update:
    step = reader.number()
    if step not in (_STEP_1, _STEP_2, _UPDATE):
        _refuse(f"a sync message is of the unknown kind {step}")
    content = reader.bytes()
    return Step1(content) if step == _STEP_1 else Update(content, step == _STEP_2)


def _entries(reader: Reader) -> list[Present]:
    count = reader.number()
    if count > reader.left:
        _refuse("it ends too early")
    if count > ENTRIES_MAX:
        _refuse(f"it has {count} awareness entries; {ENTRIES_MAX} are allowed")
    entries = [Present(reader.number(), reader.number(), reader.bytes() or GONE) for _ in range(count)]
    if reader.left:
        _refuse("bytes follow its awareness entries")
    return entries


def reached(update: bytes) -> dict[int, int]:
    """The clock that each Yjs client has reached once this update is applied.

    Raises:
        InvalidValue: it is not a Yjs update.
    """
    structs = yjs.parse(update).structs
    return {client: found[-1].clock + found[-1].length for client, found in structs.items() if found}


def clocks(state: bytes) -> dict[int, int]:
    """The clock of each Yjs client in a state vector.

    Raises:
        InvalidValue: it is not a state vector.
    """
    return yjs.parse_state(state)


def brings_nothing(update: bytes, state: bytes, since: bytes) -> bool:
    """Whether an update changes nothing in a document: `state` is its state vector, `since` what somebody lacks of it.

    Whoever lacks anything is given all deletions, so what `since` builds on does not matter.

    Raises:
        InvalidValue: it is not a Yjs update.
    """
    return yjs.covers(yjs.parse_state(state), yjs.parse(since).deletes, yjs.parse(update))


def encode_step_1(state: bytes) -> bytes:
    """Ask for the updates that are not in the state vector `state`."""
    return b"\x00\x00" + sized(state)


def encode_step_2(update: bytes) -> bytes:
    """Answer a step 1 with the updates that the other side lacks, as one."""
    return b"\x00\x01" + sized(update)


def encode_update(update: bytes) -> bytes:
    """Send an edit."""
    return b"\x00\x02" + sized(update)


def encode_awareness(entries: Iterable[Present]) -> bytes:
    """Send presence entries; those with the state `GONE` end."""
    listed = [pack_number(entry.client) + pack_number(entry.clock) + sized(entry.state) for entry in entries]
    return b"\x01" + sized(pack_number(len(listed)) + b"".join(listed))


def encode_durable(count: int) -> bytes:
    """Acknowledge the first `count` updates since the client asked for acknowledgements."""
    return pack_number(DURABLE) + pack_number(count)


def pack_number(value: int) -> bytes:
    """A number in lib0's encoding: 7 bits to a byte, lowest first."""
    packed = bytearray()
    while value > 0x7F:
        packed.append(value & 0x7F | 0x80)
        value >>= 7
    packed.append(value)
    return bytes(packed)


def sized(content: bytes) -> bytes:
    """A byte string, preceded by its length."""
    return pack_number(len(content)) + content


class Reader:
    """Reads numbers and byte strings, in lib0's encoding, one after the other; raises InvalidValue where they end too early."""

    __slots__ = ("_data", "_position")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    @property
    def left(self) -> int:
        """How many bytes are not read yet."""
        return len(self._data) - self._position

    def rest(self) -> bytes:
        """All that is not read yet; it stays unread."""
        return self._data[self._position :]

    def number(self) -> int:
        """A number."""
        value = shift = 0
        while True:
            if self._position >= len(self._data):
                _refuse("it ends too early")
            byte = self._data[self._position]
            self._position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 49:
                _refuse("a number is out of range")
        if value > _NUMBER_MAX:
            _refuse("a number is out of range")
        return value

    def bytes(self) -> bytes:
        """A byte string."""
        size = self.number()
        start = self._position
        end = start + size
        if end > len(self._data):
            _refuse("it ends too early")
        self._position = end
        return self._data[start:end]


def _refuse(why: str) -> NoReturn:
    raise InvalidValue(f"this is not a message of the y-websocket protocol: {why}. Nothing was written.")


def in_pieces(update: bytes) -> Iterator[bytes]:
    """The pieces of an update that is too large for one operation, in the order in which they may be written. Some of them
    bring nothing: others should get a turn then.

    Raises:
        InvalidValue: it is no Yjs update.
    """
    return readiness.pieces(update, structs_max=PIECE_STRUCTS)


_HOCUSPOCUS_AUTH, _CLOSE, _STATUS = 2, 7, 8
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
    """Messages of y-websocket, for `decode`."""

    messages: bytes


class Addressed(NamedTuple):
    """A message about one document."""

    address: bytes
    said: Open | Close | Said


def decode_named(data: bytes) -> Addressed | None:
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
    return bytes((_HOCUSPOCUS_AUTH, _ACCEPTED)) + sized(scope.encode())


def encode_denied(reason: str) -> bytes:
    """The document is not opened."""
    return bytes((_HOCUSPOCUS_AUTH, _DENIED)) + sized(reason.encode(errors="replace"))


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
