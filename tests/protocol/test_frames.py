from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import get_args

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shoal import errors
from shoal.errors import InvalidInput, InvalidValue, Overloaded, ShoalError, Unsupported
from shoal.protocol import frames, requests
from shoal.protocol.bookmark import Sight
from shoal.protocol.frames import (
    CallFrame,
    CancelFrame,
    EndFrame,
    ErrorFrame,
    Fault,
    Hello,
    PushFrame,
    Refused,
    ReplyFrame,
    SubscribeFrame,
    Welcome,
)
from tests.support.examples import examples

pack = msgspec.msgpack.encode
names = st.text(max_size=8)
packed = st.binary(max_size=16)
ids = st.integers(0, 2**53)

any_request = st.one_of(
    st.builds(requests.Save, names, names, st.dictionaries(names, packed, max_size=3), packed),
    st.builds(requests.Load, names, names),
    st.builds(requests.Append, names, names, packed, st.none() | names),
    st.builds(requests.Add, names, names, st.integers(-(2**63), 2**63 - 1)),
    st.builds(requests.Assign, names, names, packed, st.none() | packed),
    st.builds(requests.Update, names, names, packed),
    st.builds(requests.ListSpaces, st.none() | names),
    st.builds(requests.Status),
)
any_reply = st.one_of(
    st.builds(requests.Saved, names, st.lists(names, max_size=2), names, st.lists(names, max_size=2), ids),
    st.builds(requests.CounterValue, st.integers(-(2**63), 2**63 - 1)),
    st.builds(requests.Siblings, st.lists(st.builds(requests.Sibling, packed, ids), max_size=2), packed),
    st.builds(requests.Updated),
)
detail = st.dictionaries(names, st.none() | st.integers(-(2**53), 2**53) | names | st.lists(names, max_size=2), max_size=2)


def one(message: bytes) -> bytes:
    """A message with a single frame in it."""
    return next(frames.messages([message], bytes_max=1 << 20))


@given(ids, any_request, st.none() | names, st.sampled_from(get_args(requests.Durability)))
@examples(60)
def test_a_call_comes_back_as_it_was_sent(
    id: int, request: requests.AnyRequest, key: str | None, durability: requests.Durability
) -> None:
    [frame] = frames.decode_caller_frames(one(frames.encode_call(id, request, key=key, durability=durability)))
    assert isinstance(frame, CallFrame)
    assert (frame.id, frame.key, frame.durability) == (id, key, durability)
    assert frames.decode_request(frame.request) == request


@given(ids, any_reply)
@examples(40)
def test_a_reply_comes_back_as_it_was_sent(id: int, reply: requests.AnyReply) -> None:
    [frame] = frames.decode_node_frames(one(frames.encode_reply(id, reply)))
    assert isinstance(frame, ReplyFrame)
    assert frame.id == id
    assert frames.decode_reply(frame.reply, type(reply)) == reply


@given(st.sampled_from(sorted(errors.BY_CODE)), names, detail)
@examples(40)
def test_an_error_comes_back_as_the_class_that_was_raised(
    code: str, message: str, detail: dict[str, str | int | float | list[str] | None]
) -> None:
    raised = errors.BY_CODE[code](message, **detail)
    [frame] = frames.decode_node_frames(one(frames.encode_error(7, raised)))
    assert isinstance(frame, ErrorFrame)
    again = frame.fault.error()
    assert (type(again), again.message, again.detail, again.written) == (type(raised), message, detail, raised.written)


def test_subscriptions_pushes_and_ends_come_back_as_they_were_sent() -> None:
    watch = requests.Watch("crew", "thread", "a")
    change = requests.Change("crew", "thread", "a", "save", "id", 1, 2)
    first, second = frames.decode_caller_frames(
        b"".join(frames.messages([frames.encode_subscribe(1, watch), frames.encode_cancel(1)], bytes_max=1 << 20))
    )
    assert isinstance(first, SubscribeFrame)
    assert frames.decode_subscription(first.subscription) == watch
    assert second == CancelFrame(1)
    push, end, failed = frames.decode_node_frames(
        b"".join(
            frames.messages(
                [
                    frames.encode_push(1, change, [Sight(7, b"v")]),
                    frames.encode_end(1),
                    frames.encode_end(2, errors.SlowConsumer("slow")),
                ],
                bytes_max=1 << 20,
            )
        )
    )
    assert isinstance(push, PushFrame)
    assert frames.decode_push(push.push) == change
    assert push.seen == [Sight(7, b"v")]
    assert end == EndFrame(1, None)
    assert failed == EndFrame(2, Fault("slow-consumer", "slow", {}, "no", retryable=True))


def test_the_bytes_are_those_of_the_documentation() -> None:
    assert frames.encode_hello(Hello(2, "x")) == bytes.fromhex("93 a568656c6c6f 02 a178")
    call = frames.encode_call(5, requests.ReadCounter("s", "c"), key="k")
    assert one(call) == bytes.fromhex("91 95 00 05 a16b a56c6f63616c 93 ac726561642d636f756e746572 a173 a163")
    assert one(frames.encode_reply(5, requests.CounterValue(3))) == bytes.fromhex(
        "91 93 03 05 92 ad636f756e7465722d76616c7565 03"
    )
    stale = frames.encode_call(5, requests.ReadCounter("s", "c"), stale=True)
    assert one(stale) == bytes.fromhex("91 96 00 05 c0 a56c6f63616c 93 ac726561642d636f756e746572 a173 a163 c3")
    seen = frames.encode_reply(5, requests.CounterValue(3), [Sight(7, b"v")])
    assert one(seen) == bytes.fromhex("91 94 03 05 92 ad636f756e7465722d76616c7565 03 91 94 07 c40176 c2 c400")
    assert one(frames.encode_observe(b"b")) == bytes.fromhex("91 92 07 c40162")
    error = frames.encode_error(5, errors.NotFound("m"))
    assert one(error) == bytes.fromhex("91 93 04 05 95 a96e6f742d666f756e64 a16d 80 a26e6f c2")
    assert one(frames.encode_cancel(5)) == bytes.fromhex("91 92 02 05")
    assert one(frames.encode_end(5)) == bytes.fromhex("91 93 06 05 c0")


def test_omitted_last_fields_of_a_frame_have_defaults() -> None:
    [call] = frames.decode_caller_frames(one(frames.encode_call(5, requests.Status())))
    [reply] = frames.decode_node_frames(one(frames.encode_reply(5, None)))
    assert isinstance(call, CallFrame)
    assert isinstance(reply, ReplyFrame)
    assert call.stale is False
    assert reply.seen == []


DECODERS: list[Callable[[bytes], object]] = [
    frames.decode_hello,
    frames.decode_welcome,
    frames.decode_caller_frames,
    frames.decode_node_frames,
    frames.decode_request,
    frames.decode_subscription,
    partial(frames.decode_reply, kind=requests.Added),
    frames.decode_push,
]


@pytest.mark.answers("one-bad-message-crashes-every-node-in-turn")
@pytest.mark.parametrize("decode", DECODERS, ids=range(len(DECODERS)))
@given(data=st.binary(max_size=64) | st.recursive(st.none() | st.integers(-9, 9) | st.text(max_size=5), st.lists).map(pack))
@example(data=b"")
@example(data=b"\x91" * 50_000)
@example(data=b"\xdd\xff\xff\xff\xff")
@example(data=b"\x92\xa4save\xc1")
@example(data=b"\x93\xa5watch\xa1\xff\xc0")
@example(data=b"\x81\x80\x00")
@examples(60)
def test_any_bytes_raise_only_a_shoal_error(decode: Callable[[bytes], object], data: bytes) -> None:
    with suppress(ShoalError):
        decode(data)


@given(any_request, st.data())
@examples(60)
def test_a_damaged_request_raises_only_shoal_errors(request: requests.AnyRequest, data: st.DataObject) -> None:
    whole = bytearray(pack(request))
    whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with suppress(ShoalError):
        frames.decode_request(bytes(whole))


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=40), st.integers(10, 120))
@examples(60)
def test_frames_share_messages_in_order_and_within_the_bound(parts: list[bytes], bytes_max: int) -> None:
    encoded = [pack(part) for part in parts]
    sent = list(frames.messages(encoded, bytes_max=bytes_max))
    decoded = [msgspec.msgpack.decode(message) for message in sent]
    assert [part for message in decoded for part in message] == parts
    for message, inside in zip(sent, decoded, strict=True):
        assert len(message) <= bytes_max or len(inside) == 1


@pytest.mark.parametrize("amount", [15, 16, 65_535, 65_536])
def test_every_width_of_the_array_header_decodes(amount: int) -> None:
    message = one_message([frames.encode_cancel(1)] * amount)
    assert len(frames.decode_caller_frames(message)) == amount
    assert frames.payload_bytes(message) == amount * len(frames.encode_cancel(1))


def one_message(encoded: list[bytes]) -> bytes:
    [message] = frames.messages(encoded, bytes_max=1 << 30)
    return message


def test_an_unknown_request_is_unsupported_and_says_which() -> None:
    with pytest.raises(Unsupported, match="'levitate'") as caught:
        frames.decode_request(pack(["levitate", 1]))
    assert caught.value.detail == {"tag": "levitate"}


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (["load", "s", "t", None, 5], "branch"),
        (["save", "s", "t", {"a": 1}], "channels"),
        (["add", "s", "c", "1"], "amount"),
        (["read-counter", 1, "c"], "space"),
    ],
)
def test_a_field_of_the_wrong_type_is_named(request_: list[object], field: str) -> None:
    with pytest.raises(InvalidInput, match=rf"\({field}\)") as caught:
        frames.decode_request(pack(request_))
    assert caught.value.detail["field"] == field
    assert caught.value.written == "no"


@pytest.mark.answers("versions-work-together")
def test_fields_added_by_a_newer_version_are_ignored() -> None:
    assert frames.decode_request(pack(["read-counter", "s", "c", "new", 7])) == requests.ReadCounter("s", "c")
    assert frames.decode_caller_frames(pack([[2, 9, "new"]])) == [CancelFrame(9)]


def test_a_bad_request_does_not_spoil_its_neighbour() -> None:
    message = one_message([pack([0, 1, None, "local", ["nope"]]), frames.encode_call(2, requests.Status())])
    bad, good = frames.decode_caller_frames(message)
    assert isinstance(bad, CallFrame)
    assert isinstance(good, CallFrame)
    with pytest.raises(Unsupported):
        frames.decode_request(bad.request)
    assert frames.decode_request(good.request) == requests.Status()


@pytest.mark.parametrize("message", [pack({}), pack([[9, 1]]), pack([[0, "x", None, "local", []]]), b"\xc1", pack([[3, 1, 2]])])
def test_a_message_that_is_no_array_of_frames_is_refused(message: bytes) -> None:
    with pytest.raises(InvalidValue, match="not an array of frames"):
        frames.decode_caller_frames(message)


def test_a_caller_of_another_version_is_told_which_one_is_spoken() -> None:
    with pytest.raises(Unsupported, match=r"version 3 .* speaks 1") as caught:
        frames.decode_hello(frames.encode_hello(Hello(1, "shoal 0")))
    assert caught.value.detail == {"protocol": 3}


def test_a_refusal_raises_the_error_that_the_node_sent() -> None:
    refusal = Overloaded("full", retry_after_s=2.5)
    with pytest.raises(Overloaded, match="full") as caught:
        frames.decode_welcome(frames.encode_hello(Refused(Fault.of(refusal))))
    assert caught.value.detail == {"retry_after_s": 2.5}


def test_a_welcome_carries_the_limits() -> None:
    welcome = Welcome(3, "0.1.0", "ab", 1000, 10, 5)
    assert frames.decode_welcome(frames.encode_hello(welcome)) == welcome


def test_a_newer_caller_is_welcome_and_a_node_that_is_too_old_is_told() -> None:
    """Of two versions the newer side decides: only it knows both."""
    assert frames.decode_hello(frames.encode_hello(Hello(frames.PROTOCOL + 1, "shoal 9"))).protocol == frames.PROTOCOL + 1
    with pytest.raises(Unsupported, match="Update the node"):
        frames.decode_welcome(frames.encode_hello(Welcome(1, "0.1.0", "ab", 1000, 10, 5)))


def test_an_unknown_durability_is_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="'forever'"):
        frames.check_durability("forever")
    assert frames.check_durability("quorum") == "quorum"
