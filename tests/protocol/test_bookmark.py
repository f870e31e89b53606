"""What a session still names of what it saw long ago."""

from __future__ import annotations

from shoal.crdt.dot import Origin, VersionVector
from shoal.errors import BookmarkLost
from shoal.protocol.bookmark import Bookmark

SEEN = VersionVector({Origin(b"a" * 16): 1})


def lost(partition: int) -> BookmarkLost:
    return BookmarkLost("no node knows it", partition=partition)


def test_what_no_node_knows_is_let_go_once_it_was_not_touched_for_long() -> None:
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
