"""A snapshot that is cut, altered, mixed or lies is refused before anything is replaced by it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec
import pytest

from shoal.cluster.operation import Tip
from shoal.crdt.dot import Dot, Origin
from shoal.errors import BadOperation
from shoal.node.snapshots import switching
from shoal.node.snapshots.checking import Checker, Content, differing, lacking
from shoal.storage import keys
from shoal.storage.interface import MemoryStorage
from shoal.storage.keys import Kind
from tests.node.snapshots.conftest import NUMBER, SPACE, Filled
from tests.node.snapshots.test_switching import pieces_of, staged_in

Row = tuple[bytes, bytes]
Rows = list[Row]

OTHER = Origin(b"x" * 16)


def checked(pieces: list[Rows]) -> Content:
    checker = Checker(NUMBER, clock=0)
    for piece in pieces:
        assert checker.take(msgspec.msgpack.encode(piece)) == piece
    return checker.finish()


@pytest.fixture
def pieces(filled: Filled) -> list[Rows]:
    return pieces_of(filled.rows())


@pytest.fixture
def rows(pieces: list[Rows]) -> Rows:
    return [row for piece in pieces for row in piece]


def of_table(rows: Rows, table: bytes) -> list[int]:
    """The places of a table's rows."""
    return [place for place, (key, _) in enumerate(rows) if key[:1] == table]


async def test_a_sound_snapshot_tells_the_vector_of_its_rows(filled: Filled, pieces: list[Rows], rows: Rows) -> None:
    content = checked(pieces)
    own = filled.node._incarnation.current
    assert own is not None
    assert {origin: tip.sequence for origin, tip in content.tips.items()} == {own: len(of_table(rows, keys.LOG))}


@pytest.mark.answers("altered-snapshot-is-used")
async def test_a_piece_cut_at_any_byte_is_refused(rows: Rows) -> None:
    packed = msgspec.msgpack.encode(rows)
    for length in range(len(packed)):
        with pytest.raises(BadOperation, match="cannot be used"):
            Checker(NUMBER, clock=0).take(packed[:length])


@pytest.mark.answers("altered-snapshot-is-used")
async def test_a_snapshot_that_lacks_any_row_of_its_log_or_vector_is_refused(rows: Rows) -> None:
    for place in [*of_table(rows, keys.LOG), *of_table(rows, keys.VECTOR)]:
        with pytest.raises(BadOperation, match="cannot be used"):
            checked([[row for nth, row in enumerate(rows) if nth != place]])


async def test_a_snapshot_that_ends_after_any_row_of_its_log_is_refused(rows: Rows) -> None:
    for place in of_table(rows, keys.LOG):
        with pytest.raises(BadOperation, match=r"log of .* ends at"):
            checked([rows[:place]])


async def test_an_operation_that_was_altered_breaks_the_chain(rows: Rows) -> None:
    for place in of_table(rows, keys.LOG):
        key, value = rows[place]
        altered = [*rows[:place], (key, value[:-1] + bytes([value[-1] ^ 1])), *rows[place + 1 :]]
        with pytest.raises(BadOperation, match="chain hash"):
            checked([altered])


async def test_a_peer_that_claims_more_than_its_log_holds_is_refused(rows: Rows) -> None:
    [place] = of_table(rows, keys.VECTOR)
    key, value = rows[place]
    tip = Tip.unpack(value)
    more = msgspec.structs.replace(tip, sequence=tip.sequence + 1).pack()
    with pytest.raises(BadOperation, match="ends at"):
        checked([[*rows[:place], (key, more), *rows[place + 1 :]]])


async def test_a_base_above_the_vector_is_refused(rows: Rows) -> None:
    [place] = of_table(rows, keys.VECTOR)
    key, value = rows[place]
    tip = Tip.unpack(value)
    base = keys.base(NUMBER, Origin(key[3:])), msgspec.structs.replace(tip, sequence=tip.sequence + 1).pack()
    with pytest.raises(BadOperation, match=r"base of .* is above"):
        checked([[*rows[: place + 1], base, *rows[place + 1 :]]])


async def test_a_truncated_log_begins_after_its_base(rows: Rows) -> None:
    first, *others = of_table(rows, keys.LOG)
    dot, chain = keys.split_log(rows[first][0])[1], rows[first][1][:32]
    [vector] = of_table(rows, keys.VECTOR)
    tip = Tip.unpack(rows[vector][1])
    base = msgspec.structs.replace(tip, sequence=dot.sequence, chain=chain, known=False).pack()
    truncated = [*rows[: vector + 1], (keys.base(NUMBER, dot.origin), base), *rows[vector + 1 : first], *rows[first + 1 :]]
    assert others
    assert checked([truncated]).bases[dot.origin].sequence == 1


@pytest.mark.parametrize(
    "stray",
    [
        (keys.meta("node"), b"x" * 16),
        (keys.catalog("s", Kind.SET, "x"), b""),
        (keys.staged(NUMBER, 0), b""),
        (keys.listed(NUMBER + 1, Kind.SET, SPACE, "x"), b""),
        (keys.listed(NUMBER, Kind.SET, "another space", "x"), b""),
        (keys.object_rows(NUMBER, Kind.SET, "another space", "x") + b"N", b""),
        (keys.OBJECT + NUMBER.to_bytes(2, "big") + b"\xee\x00\x01s\x00\x01xN", b""),
        (keys.OBJECT + NUMBER.to_bytes(2, "big") + b"\x01\x00\x01\xff\x00\x01xN", b""),
        (keys.GARBAGE + NUMBER.to_bytes(2, "big") + b"x" * 26, b"\xc1"),
    ],
    ids=lambda stray: stray[0][:1].decode() if isinstance(stray, tuple) else "",
)
async def test_a_row_that_does_not_belong_there_is_refused(rows: Rows, stray: Row) -> None:
    for place in range(len(rows) + 1):
        with pytest.raises(BadOperation, match="cannot be used"):
            checked([[*rows[:place], stray, *rows[place:]]])


async def test_rows_out_of_order_or_twice_are_refused(rows: Rows, pieces: list[Rows]) -> None:
    wrong: list[Callable[[], list[Rows]]] = [
        lambda: [rows[::-1]],
        lambda: [rows, rows],
        lambda: [pieces[1], pieces[0], *pieces[2:]],
        lambda: [pieces[0], pieces[0], *pieces[1:]],
        lambda: [pieces[0], [], *pieces[1:]],
    ]
    for made in wrong:
        with pytest.raises(BadOperation):
            checked(made())


async def test_a_piece_of_a_snapshot_of_another_moment_is_refused(filled: Filled, pieces: list[Rows]) -> None:
    await filled.space.counter("tokens").add(1)
    await filled.space.thread("later").save({"n": 1})
    later = pieces_of(filled.rows())
    assert len(later) >= len(pieces)
    for nth in range(len(pieces)):
        if later[nth] == pieces[nth]:
            continue
        mixed = [*pieces[:nth], later[nth], *pieces[nth + 1 :]]
        try:
            content = checked(mixed)
        except BadOperation:
            continue
        # What chain hashes cannot tell, the hash of the whole snapshot does: see `cluster/test_snapshots.py`.
        assert content.tips == checked(pieces).tips


@pytest.mark.answers("snapshot-replaces-what-its-sender-lacks")
async def test_operations_missing_in_a_snapshot_are_found(pieces: list[Rows]) -> None:
    content = checked(pieces)
    [(origin, tip)] = content.tips.items()
    assert lacking(content, {origin: tip}) is None
    assert lacking(content, {}) is None
    ahead = msgspec.structs.replace(tip, sequence=tip.sequence + 1)
    assert lacking(content, {origin: ahead}) == Dot(origin, ahead.sequence)
    assert lacking(content, {OTHER: tip}) == Dot(OTHER, tip.sequence)


@pytest.mark.answers("snapshot-replaces-what-its-sender-lacks")
async def test_another_operation_under_the_same_dot_is_found_wherever_it_is(pieces: list[Rows], rows: Rows) -> None:
    content = checked(pieces)
    storage = MemoryStorage()
    staged_in(storage, pieces)
    for place in of_table(rows, keys.LOG):
        dot, chain = keys.split_log(rows[place][0])[1], rows[place][1][:32]
        ours = msgspec.structs.replace(content.tips[dot.origin], sequence=dot.sequence, chain=chain)
        wrong = msgspec.structs.replace(ours, chain=b"!" * 32)
        for held in (pieces.__getitem__, partial(switching.staged, storage, NUMBER)):
            assert differing(NUMBER, content, {dot.origin: ours}, held) is None
            assert differing(NUMBER, content, {dot.origin: wrong}, held) == dot
