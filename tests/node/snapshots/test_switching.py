"""A staged snapshot replaces a partition, whatever interrupts the switch."""

from __future__ import annotations

import msgspec
import pytest

from shoal.config import Config
from shoal.errors import StorageFull, StoreCorrupt
from shoal.kinds.step import state as status
from shoal.node.snapshots import switching
from shoal.node.verification.verify import verify
from shoal.storage import keys
from shoal.storage.interface import MemoryStorage
from shoal.storage.keys import Kind
from tests.node.snapshots.conftest import NUMBER, SPACE, Filled

_PIECE_ROWS = 5


def pieces_of(rows: dict[bytes, bytes]) -> list[list[tuple[bytes, bytes]]]:
    """The snapshot of the partition in these rows, in short pieces."""
    all_rows = [
        (key, rows[key])
        for table in keys.PARTITION_TABLES
        for key in sorted(rows)
        if keys.rows_of(table, NUMBER)[0] <= key < keys.rows_of(table, NUMBER)[1]
    ]
    return [all_rows[start : start + _PIECE_ROWS] for start in range(0, len(all_rows), _PIECE_ROWS)]


def rows_of(filled: Filled, thread: str) -> list[bytes]:
    """The rows of a thread, in their order."""
    places = [keys.split_object(key) for key in filled.rows() if key[:1] == keys.OBJECT]
    return sorted(row for _, kind, _, name, row in places if (kind, name) == (Kind.THREAD, thread))


def staged_in(storage: MemoryStorage, pieces: list[list[tuple[bytes, bytes]]]) -> None:
    for nth, piece in enumerate(pieces):
        storage.write({keys.staged(NUMBER, nth): msgspec.msgpack.encode(piece)})


def comparable(storage: MemoryStorage) -> dict[bytes, bytes]:
    """All rows but the store's own notes, and snapshots of documents."""
    return {key: value for key, value in storage.scan(b"", None) if key[:1] not in (keys.META, keys.SNAPSHOT)}


@pytest.fixture
async def old() -> MemoryStorage:
    """A store with other content in the same partition."""
    other = Filled(2)
    await other.space.thread("one").save({"old": True})
    await other.space.thread("only here").save({"old": True})
    await other.space.thread("only here").finish()
    await other.space.map("only here").set("k", "v")
    rows = other.rows()
    await other.node.stop()
    return MemoryStorage(rows)


@pytest.mark.answers("replicas-merge-snapshots")
async def test_the_rows_are_those_of_the_sender_and_no_others(filled: Filled, old: MemoryStorage) -> None:
    pieces = pieces_of(filled.rows())
    staged_in(old, pieces)
    old.write(switching.marker(NUMBER, len(pieces)))
    assert switching.recover(old) == [NUMBER]
    assert comparable(old) == comparable(filled.storage)
    assert switching.marked(old) == {}
    assert verify(old, config=Config()).sound


async def test_a_snapshot_in_one_piece_replaces_the_partition_in_one_write(filled: Filled, old: MemoryStorage) -> None:
    rows = [row for piece in pieces_of(filled.rows()) for row in piece]
    before = old.write({})
    old.write(*switching.at_once(switching.writes(old, NUMBER, [rows])))
    assert comparable(old) == comparable(filled.storage)
    assert old.write({}) == before + 2


@pytest.mark.answers("crash-leaves-half-of-a-snapshot")
async def test_a_crash_after_any_write_of_the_switch_ends_in_the_same_rows(filled: Filled, old: MemoryStorage) -> None:
    pieces = pieces_of(filled.rows())
    staged_in(old, pieces)
    old.write(switching.marker(NUMBER, len(pieces)))
    old.sync()
    writes = list(switching.writes(MemoryStorage(dict(old.scan(b"", None))), NUMBER, pieces))
    assert len(writes) > 5
    for kept in range(len(writes) + 1):
        storage = MemoryStorage(dict(old.scan(b"", None)))
        for write in writes[:kept]:
            storage.write(*write)
        for again in range(0, kept, 3) if kept < len(writes) else ():  # It crashes again while it is carried out again.
            for write in writes[:again]:
                storage.write(*write)
        switching.recover(storage)
        assert comparable(storage) == comparable(filled.storage), kept


@pytest.mark.answers("crash-leaves-half-of-a-snapshot")
async def test_pieces_without_a_marker_are_dropped_at_the_start(filled: Filled, old: MemoryStorage) -> None:
    before = comparable(old)
    staged_in(old, pieces_of(filled.rows()))
    assert switching.recover(old) == []
    assert comparable(old) == before


async def test_a_staged_piece_that_is_damaged_is_reported_and_nothing_is_served(filled: Filled, old: MemoryStorage) -> None:
    pieces = pieces_of(filled.rows())
    staged_in(old, pieces)
    old.write({keys.staged(NUMBER, 1): b"\xc1"} | switching.marker(NUMBER, len(pieces)))
    with pytest.raises(StoreCorrupt, match="piece 1"):
        switching.recover(old)
    old.write({keys.staged(NUMBER, 1): None})
    with pytest.raises(StoreCorrupt, match="missing"):
        switching.recover(old)


@pytest.mark.answers("crash-leaves-half-of-a-snapshot")
async def test_a_full_disk_in_the_middle_leaves_the_switch_to_the_next_start(filled: Filled, old: MemoryStorage) -> None:
    pieces = pieces_of(filled.rows())
    staged_in(old, pieces)
    old.write(switching.marker(NUMBER, len(pieces)))
    writes = switching.writes(old, NUMBER, switching.all_staged(old, NUMBER, len(pieces)))
    for _ in range(4):
        old.write(*next(writes))
    old.fail_next("write")
    with pytest.raises(StorageFull):
        old.write(*next(writes))
    left = old.left_by_crash(None)
    assert switching.recover(left) == [NUMBER]
    assert comparable(left) == comparable(filled.storage)


async def test_a_blank_store_lists_the_statuses_that_a_snapshot_brings(filled: Filled) -> None:
    blank, pieces = MemoryStorage(), pieces_of(filled.rows())
    staged_in(blank, pieces)
    blank.write(switching.marker(NUMBER, len(pieces)))
    switching.recover(blank)
    at = next(row[len(status.OPEN) :] for row in rows_of(filled, "steps") if row.startswith(status.OPEN))
    begun = next(row[len(status.OPEN) :] for row in rows_of(filled, "asks") if row.startswith(status.OPEN))
    assert {key for key, _ in blank.scan(keys.STATUS, keys.STATUS + b"\xff")} == {
        keys.status(SPACE, b"\x02", "paused"),
        keys.status(SPACE, b"\x02", "asks, paused"),
        keys.status(SPACE, keys.open_since(at), "steps"),
        keys.status(SPACE, keys.open_since(begun), "asks"),
        *(keys.status(SPACE, bytes([keys.ASKING]), name) for name in ("asks", "asks again")),
    }


async def test_a_thread_whose_status_a_disk_altered_is_copied_as_it_is(filled: Filled, old: MemoryStorage) -> None:
    """The scrub replaces the row, and lists the thread under its status. A start that stopped here would never do so."""
    rows = filled.rows()
    row = next(key for key in rows if key[:1] == keys.OBJECT and keys.split_object(key)[4].startswith(status.MOVE))
    rows[row] = b"\xc1"
    pieces = pieces_of(rows)
    staged_in(old, pieces)
    old.write(switching.marker(NUMBER, len(pieces)))
    assert switching.recover(old) == [NUMBER]
    assert old.get(row) == b"\xc1"
    assert old.get(keys.catalog(SPACE, Kind.THREAD, "paused"))[:1] == bytes([keys.OPEN])  # type: ignore[index]
