"""The session protocol, byte for byte: hellos, frames, and messages of several frames.

Nothing here awaits or owns a socket. Laws:

- A message is one msgpack value: first a hello in each direction, then arrays of frames.
- A request inside a frame is decoded separately from the frame, so that a malformed one
  is answered with an error for its id and affects no other request. After a malformed
  frame the two ends no longer understand each other, so the connection is closed.
- For any bytes, decoding returns a value or raises a ShoalError.
- Fields are only added at the end, with a default, and a decoder ignores
  elements that it does not know. Any other change needs a new `PROTOCOL`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any, NoReturn, TypeVar, get_args

import msgspec
from msgspec import Raw, Struct, field

from shoal.errors import InvalidInput, InvalidValue, ShoalError, Unsupported, from_wire
from shoal.protocol.base import TOGETHER_MAX
from shoal.protocol.bookmark import Sight
from shoal.protocol.conformance import together_of, too_many, too_many_together
from shoal.protocol.requests import AnyReply, AnyRequest, Durability, Push, Replaced, Subscription

PROTOCOL = 3
PROTOCOL_OLDEST = 3  # That is spoken here: the last release's. Of two versions the older one is spoken.
"""The version of the protocol. A client with another version is rejected before its first request."""

COALESCED_BYTES_MAX = 256 * 1024
"""The size up to which frames share a message. A larger one saves nothing, and its first frame would wait for its last."""

FIELDS_MAX = 64
"""The fields of a request, or of a part of one: several times as many as any has."""

Detail = dict[str, str | int | float | list[str] | None]


class Fault(Struct, array_like=True, frozen=True):
    """A ShoalError on the wire. `written` is "no", "yes" or "unknown"; `retryable` is for receivers that do not know `code`."""

    code: str
    message: str
    detail: Detail = field(default_factory=dict)
    written: str = "no"
    retryable: bool = False

    @classmethod
    def of(cls, error: ShoalError) -> Fault:
        """The error as it is sent."""
        return cls(error.code, error.message, error.detail, error.written, error.retryable)

    def error(self) -> ShoalError:
        """The error as the receiver raises it; an unknown code becomes a `Retryable` or a plain `ShoalError`."""
        return from_wire(self.code, self.message, self.detail, self.written, retryable=self.retryable)


# ── hellos ────────────────────────────────────────────────────────────────────


class Hello(Struct, array_like=True, frozen=True, tag="hello"):
    """The first message of the side that dials."""

    protocol: int
    software: str


class Welcome(Struct, array_like=True, frozen=True, tag="welcome"):
    """The first message of the node, with the limits of this session."""

    protocol: int
    software: str
    node: str  # The id of the node's data directory, in hex.
    request_bytes_max: int  # The bytes of one message to the node.
    session_requests_max: int  # Requests under way at once.
    subscriptions_max: int


class Refused(Struct, array_like=True, frozen=True, tag="refused"):
    """The only message of a node that rejects the session."""

    fault: Fault


# ── frames ────────────────────────────────────────────────────────────────────
# The numbers are the tags on the wire. Each is used once, for both directions.


class CallFrame(Struct, array_like=True, frozen=True, tag=0):
    """A request."""

    id: int  # Chosen by the caller; unique among the calls and subscriptions under way.
    key: str | None
    durability: str  # Checked with the request, so that only this call fails.
    request: Raw
    stale: bool = False
    until_ms: int = 0  # When the caller gives up, in ms after the welcome; 0: never. The node does not begin it later.
    trace: str = ""  # The trace that it belongs to (`shoal.protocol.tracing.carried_in`), or "-". A wrong one counts as none.


class SubscribeFrame(Struct, array_like=True, frozen=True, tag=1):
    """A subscription; answered by a reply of nil before the first push, or by an error."""

    id: int
    subscription: Raw


class CancelFrame(Struct, array_like=True, frozen=True, tag=2):
    """Ends a subscription; ignored if it has ended."""

    id: int


class ReplyFrame(Struct, array_like=True, frozen=True, tag=3):
    """The reply to the call, or to the subscription, with this id."""

    id: int
    reply: Raw
    seen: list[Sight] = field(default_factory=list)  # The change of the session's bookmark.
    replaced: list[Replaced] = field(default_factory=list)  # What rules of redaction replaced in a write.


class ErrorFrame(Struct, array_like=True, frozen=True, tag=4):
    """The call with this id failed, or the subscription did not begin."""

    id: int
    fault: Fault


class PushFrame(Struct, array_like=True, frozen=True, tag=5):
    """One push of the subscription with this id."""

    id: int
    push: Raw
    seen: list[Sight] = field(default_factory=list)  # As in a reply.


class EndFrame(Struct, array_like=True, frozen=True, tag=6):
    """The last frame of a subscription; without a fault, it was cancelled."""

    id: int
    fault: Fault | None = None


class ObserveFrame(Struct, array_like=True, frozen=True, tag=7):
    """State that the caller has seen at another node: the session shows no older state from now on. It has no answer."""

    bookmark: bytes


CallerFrame = CallFrame | SubscribeFrame | CancelFrame | ObserveFrame
NodeFrame = ReplyFrame | ErrorFrame | PushFrame | EndFrame

_encoder = msgspec.msgpack.Encoder()
_hello = msgspec.msgpack.Decoder(Hello)
_answer_to_hello: msgspec.msgpack.Decoder[Welcome | Refused] = msgspec.msgpack.Decoder(Welcome | Refused)
_caller_frames = msgspec.msgpack.Decoder(list[CallerFrame])
_node_frames = msgspec.msgpack.Decoder(list[NodeFrame])
_subscription: msgspec.msgpack.Decoder[Subscription] = msgspec.msgpack.Decoder(Subscription)
_replies: dict[type, msgspec.msgpack.Decoder[Any]] = {}  # By the kind of the reply.
_push: msgspec.msgpack.Decoder[Push] = msgspec.msgpack.Decoder(Push)

_Decoded = TypeVar("_Decoded")
_UNDECODABLE = (msgspec.DecodeError, RecursionError, UnicodeDecodeError, OverflowError)


@cache
def _requests() -> msgspec.msgpack.Decoder[AnyRequest]:
    """The decoder of requests, made at the first use: it takes milliseconds, and clients do not need it."""
    return msgspec.msgpack.Decoder(AnyRequest)


# ── encoding: each frame once, straight from the value ────────────────────────


def encode_hello(hello: Hello | Welcome | Refused) -> bytes:
    """A whole message, not a frame."""
    return _encoder.encode(hello)


def encode_call(
    id: int,
    request: AnyRequest,
    *,
    key: str | None = None,
    durability: Durability = "local",
    stale: bool = False,
    until_ms: int = 0,
    trace: str = "",
) -> bytes:
    """The frame of a `CallFrame`; fields at their defaults are left out at the end."""
    frame = (0, id, key, durability, request)
    if trace:
        return _encoder.encode((*frame, stale, until_ms, trace))
    if until_ms:
        return _encoder.encode((*frame, stale, until_ms))
    return _encoder.encode((*frame, True) if stale else frame)


def encode_subscribe(id: int, subscription: Subscription) -> bytes:
    """The frame of a `SubscribeFrame`."""
    return _encoder.encode((1, id, subscription))


def encode_cancel(id: int) -> bytes:
    """The frame of a `CancelFrame`."""
    return _encoder.encode((2, id))


def encode_observe(bookmark: bytes) -> bytes:
    """The frame of an `ObserveFrame`; `bookmark` is packed."""
    return _encoder.encode((7, bookmark))


def encode_reply(id: int, reply: AnyReply | None, seen: Sequence[Sight] = (), replaced: Sequence[Replaced] = ()) -> bytes:
    """The frame of a `ReplyFrame`; with None, the subscription `id` has begun."""
    if replaced:
        return _encoder.encode((3, id, reply, seen, replaced))
    return _encoder.encode((3, id, reply, seen) if seen else (3, id, reply))


def encode_error(id: int, error: ShoalError) -> bytes:
    """The frame of an `ErrorFrame`."""
    return _encoder.encode((4, id, Fault.of(error)))


def encode_push(id: int, push: Push, seen: Sequence[Sight] = ()) -> bytes:
    """The frame of a `PushFrame`; `seen` is the change of the bookmark."""
    return _encoder.encode((5, id, push, seen) if seen else (5, id, push))


def encode_end(id: int, error: ShoalError | None = None) -> bytes:
    """The frame of an `EndFrame`; without an error the subscription was cancelled."""
    return _encoder.encode((6, id, None if error is None else Fault.of(error)))


def messages(frames: Iterable[bytes], /, *, bytes_max: int) -> Iterator[bytes]:
    """Pack encoded frames into messages of at most `bytes_max`, in order.

    A larger frame has a message of its own; its size was checked when it was made.
    """
    batch: list[bytes] = []
    size = _ARRAY_HEADER_BYTES_MAX
    for frame in frames:
        if batch and size + len(frame) > bytes_max:
            yield _packed(batch)
            batch, size = [], _ARRAY_HEADER_BYTES_MAX
        batch.append(frame)
        size += len(frame)
    if batch:
        yield _packed(batch)


_ARRAY_HEADER_BYTES_MAX = 5


def message_bytes(frame: bytes) -> int:
    """The size of a message of `frame` alone."""
    return len(frame) + 1


def payload_bytes(message: bytes) -> int:
    """The size of the frames in a message that `messages` made."""
    return len(message) - (1 if message[0] < 0xDC else 3 if message[0] == 0xDC else 5)


def _packed(frames: list[bytes]) -> bytes:
    count = len(frames)
    if count < 16:
        header = bytes([0x90 | count])
    elif count < 1 << 16:
        header = b"\xdc" + count.to_bytes(2, "big")
    else:
        header = b"\xdd" + count.to_bytes(4, "big")
    return header + b"".join(frames)


# ── decoding ──────────────────────────────────────────────────────────────────


def decode_hello(message: bytes) -> Hello:
    """The caller's hello.

    Raises:
        InvalidValue: `message` is not one.
        Unsupported: it is of an older version of the protocol than this node speaks.
    """
    hello = _decoded(_hello, message, "the first message is not a hello")
    if hello.protocol < PROTOCOL_OLDEST:  # A newer caller decides whether it speaks this node's.
        raise Unsupported(
            f"this node speaks version {PROTOCOL} of the session protocol; the caller speaks {hello.protocol}. "
            "Nothing was written. Update the caller.",
            protocol=PROTOCOL,
        )
    return hello


def decode_welcome(message: bytes) -> Welcome:
    """The node's answer to a hello.

    Raises:
        InvalidValue: `message` is not one.
        Unsupported: the node speaks an older version of the protocol only.
        ShoalError: the node rejected the session with this error.
    """
    answer = _decoded(_answer_to_hello, message, "the node's first message is neither a welcome nor a refusal")
    if isinstance(answer, Refused):
        raise answer.fault.error()
    if answer.protocol < PROTOCOL_OLDEST:
        raise Unsupported(
            f"the node speaks version {answer.protocol} of the session protocol; this client needs {PROTOCOL_OLDEST} or newer. "
            "Nothing was sent. Update the node.",
            protocol=answer.protocol,
        )
    return answer


def decode_caller_frames(message: bytes) -> list[CallerFrame]:
    """The frames of a caller's message.

    Raises:
        InvalidValue: the message is not an array of frames; close the connection.
    """
    return _decoded(_caller_frames, message, "the message is not an array of frames")


def decode_node_frames(message: bytes) -> list[NodeFrame]:
    """The frames of a node's message.

    Raises:
        InvalidValue: the message is not an array of frames; close the connection.
    """
    return _decoded(_node_frames, message, "the node's message is not an array of frames")


def decode_request(raw: Raw | bytes) -> AnyRequest:
    """The request of a call.

    Raises:
        Unsupported: this version does not know its tag.
        TooLarge: a list or dict has more elements than its field allows, or those of all its parts have together.
        InvalidInput: a field has the wrong type or is missing; the error names it.
        InvalidValue: it is not msgpack.
    """
    try:
        if memoryview(raw).nbytes > TOGETHER_MAX:  # A shorter one cannot have more.
            _check_lengths(raw)
        return _requests().decode(raw)
    except _UNDECODABLE as reason:
        _refuse(raw, reason, _REQUESTS, "request")


def decode_subscription(raw: Raw | bytes) -> Subscription:
    """The subscription of a subscribe frame; raises the errors of `decode_request`."""
    try:
        return _subscription.decode(raw)
    except _UNDECODABLE as reason:
        _refuse(raw, reason, _SUBSCRIPTIONS, "subscription")


def decode_reply(raw: Raw | bytes, kind: type[_Decoded]) -> _Decoded:
    """The answer to a call; `kind` is its class.

    Raises:
        InvalidValue: it is of another class, or of a newer version.
    """
    decoder: msgspec.msgpack.Decoder[_Decoded] | None = _replies.get(kind)
    if decoder is None:
        decoder = _replies[kind] = msgspec.msgpack.Decoder(kind)
    return _decoded(decoder, raw, "the node's reply is not understood")


def decode_push(raw: Raw | bytes) -> Push:
    """A push of a subscription.

    Raises:
        InvalidValue: it is malformed, or of a newer version.
    """
    return _decoded(_push, raw, "a push of the node is not understood")


def check_durability(durability: str) -> Durability:
    """Return `durability` if it is legal.

    Raises:
        InvalidInput: it is not; nothing was written.
    """
    if durability in _DURABILITIES:
        return durability  # type: ignore[return-value]
    raise InvalidInput(
        f"durability must be one of {', '.join(_DURABILITIES)}; got {durability[:40]!r}. Nothing was written.",
        field="durability",
    )


_DURABILITIES = get_args(Durability)
_REQUESTS: dict[str, type[Struct]] = {kind.__struct_config__.tag: kind for kind in get_args(AnyRequest)}
_SUBSCRIPTIONS: dict[str, type[Struct]] = {kind.__struct_config__.tag: kind for kind in get_args(Subscription)}


def _decoded(decoder: msgspec.msgpack.Decoder[_Decoded], message: Raw | bytes, what: str) -> _Decoded:
    try:
        return decoder.decode(message)
    except _UNDECODABLE as reason:
        raise InvalidValue(f"{what}: {reason}.") from None


def _refuse(raw: Raw | bytes, reason: Exception, known: dict[str, type[Struct]], what: str) -> NoReturn:
    """Raise the error that explains why a request cannot be decoded. It is slow, and only called for bad requests."""
    if not isinstance(reason, msgspec.ValidationError):
        raise InvalidValue(f"the {what} is not valid msgpack: {reason}. Nothing was written.") from None
    tag = _tag(raw)
    if isinstance(tag, str) and tag not in known:
        raise Unsupported(
            f"this node does not know the {what} {tag[:40]!r}. Nothing was written. Update the node.",
            tag=tag[:40],
        ) from None
    text = str(reason)
    name = _field(text, known.get(tag) if isinstance(tag, str) else None)
    if longest := re.search(r"of length <= (\d+)", text):
        raise too_many(name, int(longest[1])) from None
    raise InvalidInput(
        f"the {what} is not valid: {text}{f' ({name})' if name else ''}. Nothing was written.", field=name
    ) from None


def _bounds_of(kind: type[Struct]) -> list[tuple[int, str, int]]:
    """The fields of a request whose lengths are bounded, by their places: their names, and the bounds."""
    return [
        (place, field.name, mark.max_length)
        for place, field in enumerate(msgspec.structs.fields(kind))
        for part in (field.type, *get_args(field.type))
        for mark in getattr(part, "__metadata__", ())
        if isinstance(mark, msgspec.Meta) and mark.max_length is not None
    ]


_BOUNDS = {tag: bounds for tag, kind in _REQUESTS.items() if (bounds := _bounds_of(kind))}
"""By the tag of a request: its lists and dicts with their bounds."""

_TOGETHER = {tag: (place, name, most) for tag, kind in _REQUESTS.items() for place, (name, most) in together_of(kind).items()}
"""By the tag of a request: which of its fields has parts whose lists and dicts are bounded together, and the bound."""


def _check_lengths(raw: Raw | bytes) -> None:
    """Count the elements of a request's lists and dicts, and of its parts', before anything is made of them.

    Raises:
        TooLarge: they are more than a field allows.
    """
    if _length(raw) > FIELDS_MAX:
        raise too_many(None, FIELDS_MAX)
    tag, *fields = _raws(raw) or [Raw(b"\xc0")]
    named = msgspec.msgpack.decode(tag, type=str)
    for place, name, most in _BOUNDS.get(named, ()):
        if place < len(fields) and _length(fields[place]) > most:
            raise too_many(name, most)
    place, name, most = _TOGETHER.get(named, (0, "", 0))
    if not most:
        return
    parts, left = fields[place : 1 + place], most
    if not parts:
        return  # The decoder refuses it.
    for part in _raws(parts[0]):
        if _length(part) > FIELDS_MAX:
            raise too_many(name, FIELDS_MAX)
        left -= sum(_length(each) for each in _raws(part))
        if left < 0:
            raise too_many_together(name, most)


_raws = msgspec.msgpack.Decoder(list[Raw]).decode


def _length(raw: Raw | bytes) -> int:
    """The number of elements of a packed list or map, by its head; 0 if it is neither."""
    head = bytes(memoryview(raw)[:5])
    kind = head[0] if head else 0
    if 0x80 <= kind <= 0x9F:
        return kind & 0x0F
    size = {0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}.get(kind, 0)
    return int.from_bytes(head[1 : 1 + size], "big")


class _Tagged(Struct, array_like=True):
    """A request of which nothing is made but the tag, however many fields it has."""

    tag: str


def _tag(raw: Raw | bytes) -> str | None:
    try:
        return msgspec.msgpack.decode(raw, type=_Tagged).tag
    except _UNDECODABLE:
        return None


def _field(reason: str, kind: type[Struct] | None) -> str | None:
    """The name of the field that msgspec gives by its index, as in `$[2]`; element 0 is the tag."""
    place = re.search(r"\$\[(\d+)\]", reason)
    if kind is None or place is None:
        return None
    index = int(place[1]) - 1
    return kind.__struct_fields__[index] if 0 <= index < len(kind.__struct_fields__) else None
