"""What a session still names of what it saw long ago."""

from __future__ import annotations

import msgspec
import pytest

from shoal.crdt.dot import DOT_BYTES, Origin, VersionVector
from shoal.errors import BookmarkLost, TooLarge
from shoal.protocol.bookmark import BYTES_MAX, ORIGINS_MAX, Bookmark, SharedBookmark

SEEN = VersionVector({Origin(b"a" * 16): 1})


def lost(partition: int) -> BookmarkLost:
    return BookmarkLost("no node knows it", partition=partition)


def test_unknown_origins_are_let_go_once_old() -> None:
    time_s = 0.0
    bookmark = Bookmark(lambda: time_s)
    for partition in (7, 8):
        bookmark.note(partition, SEEN)
    time_s = 80.0
    bookmark.note(8, SEEN)  # Shown again, though nothing is new.
    assert not bookmark.let_go(lost(7), 100.0)
    time_s = 90.0
    assert not bookmark.let_go(lost(8), 100.0)
    assert bookmark.let_go(lost(7), 100.0)
    assert dict(bookmark) == {8: SEEN}
    assert bookmark.let_go(lost(7), 100.0)  # Another request had named it too.


def test_without_a_clock_or_a_partition_nothing_is_let_go() -> None:
    bookmark = Bookmark()
    bookmark.note(7, SEEN)
    assert not bookmark.let_go(lost(7), 0.0)
    timed = Bookmark(lambda: 0.0)
    timed.note(7, SEEN)
    assert not timed.let_go(BookmarkLost("of an older node"), 0.0)
    assert dict(bookmark) == dict(timed) == {7: SEEN}


def packed(origins: int, *partitions: int, first: int = 0) -> bytes:
    vector = VersionVector({Origin(nth.to_bytes(16, "big")): 1 for nth in range(first, first + origins)}).pack()
    return b"\x01" + msgspec.msgpack.encode([(partition, vector) for partition in partitions])


def test_bytes_and_origins_of_a_bookmark_are_bounded() -> None:
    assert len(Bookmark.unpack(packed(ORIGINS_MAX, 7)).vector(7)) == ORIGINS_MAX
    with pytest.raises(TooLarge, match="origins of partition 7"):
        Bookmark.unpack(packed(ORIGINS_MAX + 1, 7))
    with pytest.raises(TooLarge, match="bytes"):
        Bookmark.unpack(packed(100, *range(BYTES_MAX // (100 * DOT_BYTES) + 1)))


def test_a_large_bookmark_is_read_in_steps() -> None:
    steps = sum(1 for _ in Bookmark.reading(packed(10, *range(1000))))
    assert steps > 10


def test_a_session_that_observes_again_and_again_is_bounded() -> None:
    shared = SharedBookmark()
    for partition in range(10):
        shared.observe(Bookmark.unpack(packed(ORIGINS_MAX, partition)))
    with pytest.raises(TooLarge, match="together"):
        shared.observe(Bookmark.unpack(packed(ORIGINS_MAX, 11)))
    other = SharedBookmark()
    other.observe(Bookmark.unpack(packed(ORIGINS_MAX, 1)))
    with pytest.raises(TooLarge, match="of a partition"):
        other.observe(Bookmark.unpack(packed(1, 1, first=ORIGINS_MAX)))


def test_seen_operations_are_joined_with_noted_ones() -> None:
    bookmark, other = Bookmark(), VersionVector({Origin(b"b" * 16): 1})
    bookmark.note(1, SEEN)
    bookmark.note(1, other)
    assert bookmark.vector(1) == SEEN.join(other)


def test_it_holds_the_newest_operations_alone() -> None:
    bookmark, newest = Bookmark(), Origin(b"b" * 16)
    bookmark.note(1, SEEN.join(VersionVector({newest: 1})).with_frontier([newest]))
    assert bookmark.vector(1) == VersionVector({newest: 1})
