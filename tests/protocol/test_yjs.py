"""The y-websocket protocol: what pycrdt writes is read, what is written pycrdt reads, and no bytes do more than raise."""

from __future__ import annotations

from typing import Any

import pycrdt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import InvalidValue
from shoal.protocol import yjs
from shoal.protocol.requests import Present

NUMBERS = st.integers(0, 2**53 - 1)
ENTRIES = st.lists(st.builds(Present, NUMBERS, NUMBERS, st.binary(min_size=1, max_size=20)), max_size=4)


def test_messages_of_another_implementation_are_read() -> None:
    doc: pycrdt.Doc[Any] = pycrdt.Doc()
    doc.get("t", type=pycrdt.Text).insert(0, "x" * 300)
    update = doc.get_update()
    assert yjs.decode(pycrdt.create_sync_message(doc)) == [yjs.Step1(doc.get_state())]
    assert yjs.decode(pycrdt.create_update_message(update)) == [yjs.Update(update, False)]
    answer = pycrdt.handle_sync_message(yjs.encode_step_1(b"\x00")[1:], doc)
    assert answer is not None
    assert yjs.decode(answer) == [yjs.Update(update, True)]


def test_another_implementation_reads_ours() -> None:
    doc: pycrdt.Doc[Any] = pycrdt.Doc()
    doc.get("t", type=pycrdt.Text).insert(0, "x" * 300)
    for encoded in (yjs.encode_update(doc.get_update()), yjs.encode_step_2(doc.get_update())):
        other: pycrdt.Doc[Any] = pycrdt.Doc()
        assert pycrdt.handle_sync_message(encoded[1:], other) is None
        assert str(other.get("t", type=pycrdt.Text)) == "x" * 300


def test_awareness_of_another_implementation_is_read_and_written() -> None:
    awareness = pycrdt.Awareness(pycrdt.Doc(client_id=7))
    awareness.set_local_state({"name": "Ada"})
    encoded = pycrdt.create_awareness_message(awareness.encode_awareness_update([7]))
    assert yjs.decode(encoded) == [yjs.Awareness([Present(7, 1, b'{"name":"Ada"}')])]
    other = pycrdt.Awareness(pycrdt.Doc(client_id=8))
    written = yjs.encode_awareness([Present(7, 1, b'{"name":"Ada"}')])
    other.apply_awareness_update(pycrdt.read_message(written[1:]), None)
    assert other.states[7] == {"name": "Ada"}


def test_several_messages_in_one_are_all_read() -> None:
    both = yjs.encode_update(b"\x00\x00") + b"\x03" + yjs.encode_step_1(b"\x00")
    assert yjs.decode(both) == [yjs.Update(b"\x00\x00", False), yjs.QueryAwareness(), yjs.Step1(b"\x00")]


def test_an_unknown_kind_is_left_alone_with_what_follows() -> None:
    assert yjs.decode(b"\x03\x2a\x01\x02") == [yjs.QueryAwareness()]
    assert yjs.decode(b"") == []


def test_the_acknowledgement_is_asked_for_and_written() -> None:
    assert yjs.decode(b"\x64") == [yjs.AskDurable()]
    assert yjs.encode_durable(300) == b"\x64\xac\x02"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x00\x02\x05ab", "ends too early"),
        (b"\x00\x07\x00", "unknown kind 7"),
        (b"\x00", "ends too early"),
        (b"\x01\x03\x05\x01\x01", "ends too early"),
        (b"\x01\x02\x00\x01", "follow its awareness entries"),
        (b"\xff" * 12, "out of range"),
        (b"\x00\x02" + b"\xff" * 7 + b"\x0f", "ends too early"),
    ],
)
def test_a_malformed_message_says_why(data: bytes, why: str) -> None:
    with pytest.raises(InvalidValue, match=why):
        yjs.decode(data)


@given(ENTRIES)
def test_awareness_comes_back_as_it_was(entries: list[Present]) -> None:
    assert yjs.decode(yjs.encode_awareness(entries)) == [yjs.Awareness(entries)]


@given(st.binary(max_size=60))
def test_any_bytes_are_decoded_or_refused(data: bytes) -> None:
    try:
        decoded = yjs.decode(data)
    except InvalidValue:
        return
    assert all(isinstance(message, yjs.Message) for message in decoded)


@pytest.mark.parametrize("one", [b"\x03", bytes((yjs.DURABLE,)), yjs.encode_step_1(b""), yjs.encode_update(b"\x00\x00")])
def test_one_websocket_message_holds_a_bounded_number_of_messages(one: bytes) -> None:
    assert len(yjs.decode(one * yjs.MESSAGES_MAX)) == yjs.MESSAGES_MAX
    with pytest.raises(InvalidValue, match="more than 256 messages"):
        yjs.decode(one * (yjs.MESSAGES_MAX + 1))


def test_one_message_holds_a_bounded_number_of_presence_entries() -> None:
    def message(count: int) -> bytes:
        return b"\x01" + yjs.sized(yjs.pack_number(count) + b"\x01\x01\x00" * count)

    [found] = yjs.decode(message(yjs.ENTRIES_MAX))
    assert isinstance(found, yjs.Awareness)
    assert len(found.entries) == yjs.ENTRIES_MAX
    with pytest.raises(InvalidValue, match="4097 awareness entries"):
        yjs.decode(message(yjs.ENTRIES_MAX + 1))
