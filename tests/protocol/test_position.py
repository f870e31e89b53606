"""Positions: what a watcher has been told, as bytes and text."""

from __future__ import annotations

import base64
import zlib
from random import Random

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from shoal.api.watching import WATCH_ID_BYTES_MAX
from shoal.crdt.dot import Dot, Origin, VersionVector
from shoal.errors import InvalidValue
from shoal.protocol.position import COLUMNS_BYTES_MAX, Position, pack_part
from shoal.protocol.requests import Change

ORIGINS = [Origin(bytes([n]) * 16) for n in range(1, 5)]
vectors = st.dictionaries(st.sampled_from(ORIGINS), st.integers(1, 2**40)).map(VersionVector)
dots = st.builds(Dot, st.sampled_from(ORIGINS), st.integers(1, 2**40))
positions = st.builds(
    Position,
    st.dictionaries(st.integers(0, 1023), vectors.filter(bool), max_size=20),
    st.dictionaries(st.tuples(st.integers(0, 1023), dots), st.integers(0, 1000), max_size=3),
)
CHANGE = Change("s", "counter", "c", "add", "", 1, 1, 7)


@given(positions)
def test_it_is_the_same_once_it_is_unpacked(position: Position) -> None:
    assert Position.unpack(position.pack()) == position == Position.parse(position.text())


@given(positions)
def test_it_is_the_same_where_room_is_short(position: Position) -> None:
    assert Position.parse(position.text(bytes_max=0)) == position
    assert position.text(bytes_max=10**6) == position.text()


@given(positions, st.data())
def test_columns_that_are_torn_are_refused(position: Position, data: st.DataObject) -> None:
    sound = base64.urlsafe_b64decode(position.text(bytes_max=0) + "==")
    packed = bytearray(sound)
    at = data.draw(st.integers(1, len(packed) - 1))
    packed[at:] = data.draw(st.binary(max_size=3))
    assume(packed != sound)
    with pytest.raises(InvalidValue):
        Position.parse(base64.urlsafe_b64encode(packed).rstrip(b"=").decode())


@pytest.mark.parametrize(
    "columns",
    [
        ([], [1], [], [], [], []),
        ([bytes(16)], [1], [1], [0], [], []),
        ([bytes(16)], [1], [-1], [0], [1], []),
        ([bytes(16)], [1, 0], [1, 1], [0, 0], [1, 1], []),
        ([bytes(16)], [5000], [1], [0], [1], []),
        ([bytes(16)], [1], [1], [7], [1], []),
        ([bytes(16)], [1, 1], [2, -1], [0], [1], []),
        [1],
        bytes(COLUMNS_BYTES_MAX + 1),
    ],
    ids=lambda columns: repr(columns)[:40],
)
def test_columns_that_are_no_position_are_refused(columns: object) -> None:
    packed = b"\x02" + zlib.compress(msgspec.msgpack.encode(columns))
    with pytest.raises(InvalidValue):
        Position.parse(base64.urlsafe_b64encode(packed).rstrip(b"=").decode())


@given(st.binary(max_size=60))
def test_other_bytes_are_refused(packed: bytes) -> None:
    try:
        found = Position.unpack(packed)
    except InvalidValue:
        return
    assert found.pack() == packed


@pytest.mark.parametrize("text", ["", "garbage", "é", "AQ"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue):
        Position.parse(text)


def test_of_an_operation_it_covers_what_was_told_until_it_covers_all() -> None:
    position, dot = Position(), Dot(ORIGINS[0], 1)
    position.note(replace(CHANGE, part=pack_part(dot, 1)))
    assert [position.covers(7, dot, nth) for nth in range(3)] == [True, True, False]
    position.note(replace(CHANGE, seen=VersionVector({ORIGINS[1]: 1}).pack()))
    assert position.covers(7, dot, 1)
    position.note(replace(CHANGE, seen=VersionVector({ORIGINS[0]: 1}).pack()))
    assert position == Position({7: VersionVector({ORIGINS[0]: 1, ORIGINS[1]: 1})})


def test_a_change_that_does_not_say_where_it_is_is_refused() -> None:
    for wrong in (replace(CHANGE, seen=b"torn"), replace(CHANGE, part=b"torn")):
        with pytest.raises(InvalidValue):
            Position().note(wrong)


def test_three_origins_in_every_partition_cost_little() -> None:
    everywhere = Position({n: VersionVector(dict.fromkeys(ORIGINS[:3], 100)) for n in range(1024)})
    assert len(everywhere.pack()) < 11_000


def test_where_room_is_short_every_partition_fits_an_id() -> None:
    room, chance = WATCH_ID_BYTES_MAX, Random(1)
    vectors = {n: VersionVector({origin: chance.randint(1, 300) for origin in ORIGINS[:3]}) for n in range(1024)}
    spread = Position(vectors)
    assert len(spread.text()) > 2 * room
    assert len(spread.text(bytes_max=room)) < room
