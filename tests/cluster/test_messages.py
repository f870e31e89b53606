from __future__ import annotations

from contextlib import suppress
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.cluster.comparing import Clock
from shoal.cluster.consensus.ballots import (
    NO_BALLOT,
    NO_TERM,
    NOTHING,
    Accept,
    Answer,
    Ask,
    Ballot,
    Known,
    Motion,
    Prepare,
    Refusal,
    State,
    Term,
    Value,
    Vote,
)
from shoal.cluster.messages import (
    LOST_MAX,
    RANGES_MAX,
    Busy,
    Digest,
    Have,
    Message,
    Parts,
    Push,
    RepairReply,
    RepairRequest,
    Shipment,
    Supply,
    Trouble,
    Vectors,
    Want,
    decode,
    encode,
    encode_shipment,
    slices,
    stamped,
    unstamped,
)
from shoal.errors import InvalidValue

partitions, origins = st.integers(0, 1023), st.binary(min_size=16, max_size=16)
sequences, ids = st.integers(1, 2**63 - 1), st.integers(0, 2**63)
digests = st.binary(min_size=32, max_size=32)
shipments = st.lists(st.builds(Shipment, partitions, origins, sequences, digests, st.binary(), st.binary()), max_size=3)
ranges = st.tuples(partitions, origins, st.integers(1, 100), st.integers(100, 2**63 - 1))
ballots = st.builds(Ballot, sequences.filter(lambda count: count < 1 << 62), st.binary(max_size=16))
values = st.builds(Value, st.integers(2, 99), st.binary(max_size=8), st.tuples(st.binary(max_size=16)))
terms = st.builds(Term, st.integers(0, 99), st.binary(max_size=16), st.integers(0, 99))
known_terms, keys = st.dictionaries(st.text(max_size=9), terms, max_size=3), st.text(min_size=1, max_size=9)
refusals: st.SearchStrategy[Refusal] = st.sampled_from(get_args(Refusal))
times_ms = st.integers(0, 2**53 - 1)
known: st.SearchStrategy[Message] = st.one_of(
    st.builds(Clock, times_ms, times_ms, st.integers(-1, 2**53 - 2), times_ms),
    st.builds(Prepare, keys, ballots, known_terms),
    st.builds(Accept, keys, ballots, values, known_terms),
    st.builds(Vote, keys, ballots, st.booleans(), refusals, ballots, ballots, values, terms, known_terms),
    st.builds(Ask, terms, known_terms),
    st.builds(
        Answer,
        terms,
        st.sampled_from(get_args(State)),
        st.booleans(),
        origins,
        terms,
        known_terms,
        st.lists(st.tuples(keys, ballots, ballots, values), max_size=2),
    ),
    st.builds(Known, known_terms, st.booleans()),
    st.builds(Push, shipments),
    st.builds(Have, st.lists(st.tuples(partitions, origins, sequences), max_size=3)),
    st.builds(Digest, digests),
    st.builds(Parts, st.lists(st.tuples(partitions, st.binary(max_size=8)), max_size=3)),
    st.builds(Vectors, st.lists(st.tuples(partitions, st.binary(max_size=48)), max_size=3), st.booleans(), ids),
    st.builds(Want, ids, st.lists(ranges, max_size=3)),
    st.builds(Supply, ids, shipments),
    st.builds(Busy, ids, st.text(), ids),
    st.builds(Trouble, partitions, origins, sequences, st.text(), st.text()),
    st.builds(
        RepairRequest,
        ids,
        st.integers(0, 9),
        st.text(),
        st.text(),
        st.integers(0, 2**32 - 1),
        st.lists(st.binary(), max_size=3),
    ),
    st.builds(RepairReply, ids, st.lists(st.tuples(st.binary(), st.binary()), max_size=3)),
)


@given(known)
def test_a_message_survives_its_encoding(message: Message) -> None:
    assert decode(encode(message)) == message


@given(shipments)
def test_an_operation_that_was_encoded_ahead_is_the_same_on_the_wire(operations: list[Shipment]) -> None:
    assert encode(Push([encode_shipment(shipment) for shipment in operations])) == encode(Push(operations))


@given(known, st.lists(st.integers(0, 2**16), max_size=4), st.integers(0, 300))
def test_an_altered_message_is_decoded_or_refused_and_nothing_else(message: Message, flips: list[int], cut: int) -> None:
    altered = bytearray(encode(message))
    for flip in flips:
        altered[flip // 8 % len(altered)] ^= 1 << flip % 8
    with suppress(InvalidValue):
        decode(bytes(altered[: cut or None]))


@given(st.binary())
def test_any_bytes_are_decoded_or_refused_and_nothing_else(packed: bytes) -> None:
    with suppress(InvalidValue):
        decode(packed)


@pytest.mark.answers("versions-work-together")
@given(known)
def test_a_field_that_a_newer_version_added_is_ignored(message: Message) -> None:
    longer = [*msgspec.msgpack.decode(encode(message)), "new"]
    assert decode(msgspec.msgpack.encode(longer)) == message


def test_a_vector_of_an_older_version_answers_no_question() -> None:
    assert decode(msgspec.msgpack.encode([5, [(1, b"")], True])) == Vectors([(1, b"")], True, 0)


SOUND = Shipment(1, b"o" * 16, 1, bytes(32), b"", b"")


@pytest.mark.parametrize(
    "message",
    [
        Push([msgspec.structs.replace(SOUND, partition=1024)]),
        Push([msgspec.structs.replace(SOUND, partition=-1)]),
        Push([msgspec.structs.replace(SOUND, origin=b"o" * 15)]),
        Supply(1, [msgspec.structs.replace(SOUND, sequence=0)]),
        Supply(1, [msgspec.structs.replace(SOUND, sequence=1 << 63)]),
        Supply(1, [msgspec.structs.replace(SOUND, chain=b"")]),
        Have([(1024, b"o" * 16, 1)]),
        Have([(1, b"", 1)]),
        Parts([(1024, b"")]),
        Vectors([(-1, b"")], False),
        Want(1, [(1, b"o" * 16, 2, 1)]),
        Want(1, [(1, b"o" * 16, 0, 1)]),
        Want(1, [(1, b"o" * 16, 1, 1 << 63)]),
        Want(1, [(1, b"o" * 16, 1, 1)] * (RANGES_MAX + 1)),
    ],
)
def test_impossible_messages_say_that_nothing_was_written(message: Message) -> None:
    with pytest.raises(InvalidValue, match="Nothing"):
        decode(encode(message))


@given(st.lists(st.integers()), st.integers(1, 5))
def test_slices_are_all_there_is_in_order_and_of_bounded_size(items: list[int], size: int) -> None:
    parts = list(slices(items, size))
    assert [item for part in parts for item in part] == items
    assert all(0 < len(part) <= size for part in parts)


@pytest.mark.parametrize(
    "lost", [RepairRequest(1, 1, "s", "t", -1, []), RepairRequest(1, 1, "s", "t", 0, [b"C"] * (LOST_MAX + 1))]
)
def test_a_question_for_what_cannot_be_lost_is_refused(lost: RepairRequest) -> None:
    with pytest.raises(InvalidValue):
        decode(encode(lost))


@pytest.mark.parametrize(
    "motion",
    [
        Prepare("", NO_BALLOT, {}),
        Prepare("k" * 256, NO_BALLOT, {}),
        Prepare("k", Ballot(-1, b""), {}),
        Prepare("k", Ballot(1, b"x" * 17), {}),
        Prepare("k", NO_BALLOT, {str(member): NO_TERM for member in range(129)}),
        Accept("k", NO_BALLOT, Value(1, b"", (b"x", b"y")), {}),
        Accept("k", NO_BALLOT, Value(99, b"", (b"x",) * 17), {}),
        Vote("k", NO_BALLOT, False, "", NO_BALLOT, Ballot(1 << 62, b""), NOTHING, NO_TERM, {}),
        Ask(Term(1, b"", -1), {}),
        Answer(NO_TERM, "voting", True, b"x" * 17, NO_TERM, {}),
        Known({"a": Term(-1, b"", 0)}),
    ],
)
def test_an_impossible_message_of_the_quorum_register_is_refused(motion: Motion) -> None:
    with pytest.raises(InvalidValue, match="quorum register"):
        decode(msgspec.msgpack.encode(motion))


@given(known, st.integers(0, 1 << 62))
def test_an_epoch_stands_before_its_message(message: Message, epoch: int) -> None:
    told, packed = unstamped(stamped(encode(message), epoch))
    assert (told, decode(packed)) == (epoch, message)
