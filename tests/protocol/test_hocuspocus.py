"""The protocol of Hocuspocus's provider."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import InvalidValue
from shoal.protocol import yjs
from shoal.protocol.yjs import ADDRESS_BYTES_MAX, Addressed, Close, Open, Said

NAME = b"\x04plan"


@pytest.mark.parametrize(
    ("message", "found"),
    [
        (NAME + b"\x02\x00\x03abc\x054.8.0", Addressed(b"plan", Open("abc", "4.8.0"))),
        (NAME + b"\x02\x00\x03abc", Addressed(b"plan", Open("abc"))),
        (NAME + b"\x02\x00\x00", Addressed(b"plan", Open(""))),
        (NAME + b"\x07", Addressed(b"plan", Close())),
        (NAME + yjs.encode_step_1(b"\x00"), Addressed(b"plan", Said(yjs.encode_step_1(b"\x00")))),
        (NAME + b"\x05\x02hi", Addressed(b"plan", Said(b"\x05\x02hi"))),
        (b"\x06plan\x00x\x07", Addressed(b"plan\x00x", Close())),
        (NAME + b"\x02\x02\x01x", None),
        (b"\x09", None),
        (b"\x0a", None),
    ],
)
def test_a_message_has_an_address(message: bytes, found: Addressed | None) -> None:
    assert yjs.decode_named(message) == found


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"", "ends too early"),
        (b"\x04pla", "ends too early"),
        (NAME, "ends too early"),
        (NAME + b"\x02\x00\x05ab", "ends too early"),
        (NAME + b"\x02\x00\x01\xff", "not UTF-8"),
        (yjs.sized(b"x" * (ADDRESS_BYTES_MAX + 1)) + b"\x07", "an address has 2049 bytes; 2048 are allowed"),
    ],
)
def test_malformed_messages_are_refused(message: bytes, reason: str) -> None:
    with pytest.raises(InvalidValue, match=reason):
        yjs.decode_named(message)


@given(st.binary())
def test_any_bytes_are_a_message_or_refused(message: bytes) -> None:
    try:
        found = yjs.decode_named(message)
    except InvalidValue:
        return
    assert found is None or len(found.address) < len(message)


@pytest.mark.parametrize(
    "message",
    [
        NAME + b"\x02\x00" + yjs.sized(b"token" * 30) + b"\x054.8.0",
        NAME + b"\x07",
        NAME + yjs.encode_step_1(b"\x01\xff\x01\x02"),
        NAME + yjs.encode_update(b"\x00\x01" * 80),
    ],
)
def test_a_message_that_is_cut_anywhere_is_refused_or_says_less(message: bytes) -> None:
    whole = yjs.decode_named(message)
    for end in range(len(message)):
        try:
            found = yjs.decode_named(message[:end])
            if found is not None and isinstance(found.said, Said):
                yjs.decode(found.said.messages)
        except InvalidValue:
            continue
        # Only the version of a provider was cut, which those before 4 do not send.
        assert found is not None
        assert whole is not None
        assert isinstance(whole.said, Open)
        assert found == whole._replace(said=whole.said._replace(version=""))


def test_an_address_names_a_document_and_perhaps_a_provider() -> None:
    assert yjs.document_of(b"plan") == yjs.document_of(b"plan\x00f3k") == "plan"
    with pytest.raises(InvalidValue, match="not UTF-8"):
        yjs.document_of(b"\xff")


def test_messages_to_the_provider_are_those_that_it_reads() -> None:
    assert yjs.prefix(b"plan") == NAME
    assert yjs.encode_accepted("readonly") == b"\x02\x02\x08readonly"
    assert yjs.encode_denied("no") == b"\x02\x01\x02no"
    assert (yjs.encode_status(durable=True), yjs.encode_status(durable=False)) == (b"\x08\x01", b"\x08\x00")
    assert yjs.encode_close("gone") == b"\x07\x04gone"
