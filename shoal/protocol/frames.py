"""The session protocol, byte for byte: hellos, frames, and how they share a message.

Nothing here awaits or owns a socket. Laws:

- A message is one msgpack value: first a hello each way, then arrays of frames.
- A request inside a frame is decoded apart from the frame, so that a bad one
  answers with an error for its id and disturbs nobody else. A bad frame, on the
  other hand, says that the two ends no longer understand each other: the
  connection is closed.
- Whatever the bytes, decoding returns a value or raises a ShoalError.
- Fields are only ever added at the end, with a default; a decoder ignores
  elements that it does not know. Anything else takes a new `PROTOCOL`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any, NoReturn, TypeVar, get_args

import msgspec
from msgspec import Raw, Struct, field

from shoal.errors import InvalidInput, InvalidValue, ShoalError, Unsupported, from_wire
from shoal.protocol.bookmark_delta import Sight
from shoal.protocol.requests import AnyReply, AnyRequest, Durability, Push, Subscription

PROTOCOL = 3
"""The version spoken here. A peer that speaks another is refused before its first request."""

COALESCED_BYTES_MAX = 256 * 1024
"""Frames share a message up to here: a larger one saves nothing, and its first frame would wait for its last."""

Detail = dict[str, str | int | float | list[str] | None]


class Fault(Struct, array_like=True, frozen=True):
    """A ShoalError on the wire; `written` is "no", "yes" or "unknown", `retryable` says which class a newer code is like."""

    code: str
    message: str
    detail: Detail = field(default_factory=dict)
    written: str = "no"
    retryable: bool = False

    @classmethod
    def of(cls, error: ShoalError) -> Fault:
        return cls(error.code, error.message, error.detail, error.written, error.retryable)

    def error(self) -> ShoalError:
        return from_wire(self.code, self.message, self.detail, self.written, retryable=self.retryable)


# ── hellos ────────────────────────────────────────────────────────────────────


class Hello(Struct, array_like=True, frozen=True, tag="hello"):
    """The first message of the side that dials."""

    protocol: int
    software: str


class Welcome(Struct, array_like=True, frozen=True, tag="welcome"):
    """The first message of the node, with the limits that it holds this session to."""

    protocol: int
    software: str
    node: str  # Hex: the node's data directory.
    request_bytes_max: int  # One message to the node.
    session_requests_max: int  # Under way at once.
    subscriptions_max: int


class Refused(Struct, array_like=True, frozen=True, tag="refused"):
    """The node's first and last message: it does not serve this session."""

    fault: Fault


# ── frames ────────────────────────────────────────────────────────────────────
# The numbers are the tags on the wire; none is used twice, in either direction.


class CallFrame(Struct, array_like=True, frozen=True, tag=0):
    id: int  # Chosen by the caller; unique among what is under way.
    key: str | None
    durability: str  # Checked with the request, so that a bad one fails alone.
    request: Raw
    stale: bool = False
    until_ms: int = 0  # When the caller gives up, after it was welcomed; 0: never. Then the node begins it no more.


class SubscribeFrame(Struct, array_like=True, frozen=True, tag=1):
    """Answered by a reply of nil once pushes begin, or by an error."""

    id: int
    subscription: Raw


class CancelFrame(Struct, array_like=True, frozen=True, tag=2):
    """Ends a subscription; for one that has ended it means nothing."""

    id: int


class ReplyFrame(Struct, array_like=True, frozen=True, tag=3):
    id: int
    reply: Raw
    seen: list[Sight] = field(default_factory=list)  # What the session's bookmark changed by.


class ErrorFrame(Struct, array_like=True, frozen=True, tag=4):
    id: int
    fault: Fault


class PushFrame(Struct, array_like=True, frozen=True, tag=5):
    id: int
    push: Raw
    seen: list[Sight] = field(default_factory=list)  # As in a reply.


class EndFrame(Struct, array_like=True, frozen=True, tag=6):
    """The subscription's last frame; without a fault it was cancelled."""

    id: int
    fault: Fault | None = None


class ObserveFrame(Struct, array_like=True, frozen=True, tag=7):
    """What the caller has seen elsewhere: from here on this session shows it no less. It has no answer."""

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
    """Made when a node decodes its first request: it takes milliseconds, and a client needs none."""
    return msgspec.msgpack.Decoder(AnyRequest)


# ── encoding: each frame once, straight from the value ────────────────────────


def encode_hello(hello: Hello | Welcome | Refused) -> bytes:
    return _encoder.encode(hello)


def encode_call(
    id: int,
    request: AnyRequest,
    *,
    key: str | None = None,
    durability: Durability = "local",
    stale: bool = False,
    until_ms: int = 0,
) -> bytes:
    frame = (0, id, key, durability, request)
    if until_ms:
        return _encoder.encode((*frame, stale, until_ms))
    return _encoder.encode((*frame, True) if stale else frame)


def encode_subscribe(id: int, subscription: Subscription) -> bytes:
    return _encoder.encode((1, id, subscription))


def encode_cancel(id: int) -> bytes:
    return _encoder.encode((2, id))


def encode_observe(bookmark: bytes) -> bytes:
    return _encoder.encode((7, bookmark))


def encode_reply(id: int, reply: AnyReply | None, seen: Sequence[Sight] = ()) -> bytes:
    """With None: the subscription `id` has begun."""
    return _encoder.encode((3, id, reply, seen) if seen else (3, id, reply))


def encode_error(id: int, error: ShoalError) -> bytes:
    return _encoder.encode((4, id, Fault.of(error)))


def encode_push(id: int, push: Push, seen: Sequence[Sight] = ()) -> bytes:
    return _encoder.encode((5, id, push, seen) if seen else (5, id, push))


def encode_end(id: int, error: ShoalError | None = None) -> bytes:
    return _encoder.encode((6, id, None if error is None else Fault.of(error)))


def messages(frames: Iterable[bytes], /, *, bytes_max: int) -> Iterator[bytes]:
    """Pack encoded frames into messages of at most `bytes_max`, in order.

    A single frame that is larger has a message to itself: whether it may be sent
    at all was decided when it was made.
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
    """The size of a message that holds nothing but `frame`."""
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
        InvalidValue: it is none.
        Unsupported: it speaks another version of the protocol.
    """
    hello = _decoded(_hello, message, "the first message is no hello")
    if hello.protocol != PROTOCOL:
        raise Unsupported(
            f"this node speaks version {PROTOCOL} of the session protocol; the caller speaks {hello.protocol}. "
            "Nothing was written. Update the older of the two.",
            protocol=PROTOCOL,
        )
    return hello


def decode_welcome(message: bytes) -> Welcome:
    """The node's answer to a hello.

    Raises:
        InvalidValue: it is none.
        ShoalError: the node refused; the error is the one that it sent.
    """
    answer = _decoded(_answer_to_hello, message, "the node's first message is neither a welcome nor a refusal")
    if isinstance(answer, Refused):
        raise answer.fault.error()
    return answer


def decode_caller_frames(message: bytes) -> list[CallerFrame]:
    """What a caller sent in one message.

    Raises:
        InvalidValue: the message is no array of frames; the connection is of no further use.
    """
    return _decoded(_caller_frames, message, "the message is no array of frames")


def decode_node_frames(message: bytes) -> list[NodeFrame]:
    """What a node sent in one message.

    Raises:
        InvalidValue: the message is no array of frames; the connection is of no further use.
    """
    return _decoded(_node_frames, message, "the node's message is no array of frames")


def decode_request(raw: Raw | bytes) -> AnyRequest:
    """The request of a call.

    Raises:
        Unsupported: its tag is not one that this version knows.
        InvalidInput: a field has the wrong type, or is missing; the message names it.
        InvalidValue: it is not msgpack.
    """
    try:
        return _requests().decode(raw)
    except _UNDECODABLE as reason:
        _refuse(raw, reason, _REQUESTS, "request")


def decode_subscription(raw: Raw | bytes) -> Subscription:
    """The subscription of a subscribe frame; it raises what `decode_request` raises."""
    try:
        return _subscription.decode(raw)
    except _UNDECODABLE as reason:
        _refuse(raw, reason, _SUBSCRIPTIONS, "subscription")


def decode_reply(raw: Raw | bytes, kind: type[_Decoded]) -> _Decoded:
    """The answer to a call, which is of this kind.

    Raises:
        InvalidValue: it is none that this version knows, or of another kind.
    """
    decoder: msgspec.msgpack.Decoder[_Decoded] | None = _replies.get(kind)
    if decoder is None:
        decoder = _replies[kind] = msgspec.msgpack.Decoder(kind)
    return _decoded(decoder, raw, "the node's reply is not understood")


def decode_push(raw: Raw | bytes) -> Push:
    """What a subscription delivers.

    Raises:
        InvalidValue: it is none that this version knows.
    """
    return _decoded(_push, raw, "what the node pushed is not understood")


def check_durability(durability: str) -> Durability:
    """Return `durability` if it is one.

    Raises:
        InvalidInput: it is none; nothing was written.
    """
    if durability in _DURABILITIES:
        return durability  # type: ignore[return-value]
    raise InvalidInput(
        f"durability must be one of {', '.join(_DURABILITIES)}; it is {durability[:40]!r}. Nothing was written.",
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
    """Say what is wrong with a request. Slow, and only on the way out."""
    if not isinstance(reason, msgspec.ValidationError):
        raise InvalidValue(f"the {what} is not valid msgpack: {reason}. Nothing was written.") from None
    tag = _tag(raw)
    if isinstance(tag, str) and tag not in known:
        raise Unsupported(
            f"this node knows no {what} {tag[:40]!r}. Nothing was written. Update the node, or ask for something else.",
            tag=tag[:40],
        ) from None
    text = str(reason)
    name = _field(text, known.get(tag) if isinstance(tag, str) else None)
    raise InvalidInput(
        f"the {what} is not valid: {text}{f' ({name})' if name else ''}. Nothing was written.", field=name
    ) from None


def _tag(raw: Raw | bytes) -> Any:
    try:
        first = msgspec.msgpack.decode(raw, type=list[Raw])[0]
        return msgspec.msgpack.decode(first)
    except (*_UNDECODABLE, IndexError, TypeError):
        return None


def _field(reason: str, kind: type[Struct] | None) -> str | None:
    """The name of the field that msgspec calls by its place, `$[2]`: element 0 is the tag."""
    place = re.search(r"\$\[(\d+)\]", reason)
    if kind is None or place is None:
        return None
    index = int(place[1]) - 1
    return kind.__struct_fields__[index] if 0 <= index < len(kind.__struct_fields__) else None
