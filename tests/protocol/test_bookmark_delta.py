"""A client's bookmark follows the one that the node keeps for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.crdt.dot import NOTHING_SEEN, Origin, VersionVector
from shoal.errors import InvalidValue
from shoal.protocol.bookmark import Bookmark, SharedBookmark, Sight, take_news
from tests.support.examples import examples

A, B, C = (Origin(bytes([letter]) * 16) for letter in b"abc")

entries = st.dictionaries(st.sampled_from([A, B, C]), st.integers(1, 9), max_size=3)
vectors = st.one_of(
    entries.map(VersionVector),
    entries.filter(bool).map(lambda named: VersionVector(named).with_frontier([min(named)])),
)
partitions = st.integers(0, 3)
steps = st.lists(
    st.tuples(st.sampled_from(["note", "replace", "observe", "tell"]), partitions, vectors), min_size=1, max_size=30
)


@given(steps)
@examples(300)
def test_once_it_was_told_the_client_names_what_the_node_does(steps: list[tuple[str, int, VersionVector]]) -> None:
    ours, theirs = SharedBookmark(), Bookmark()
    for what, partition, vector in [*steps, ("tell", 0, NOTHING_SEEN)]:
        match what:
            case "note":
                ours.note(partition, vector)
            case "replace":
                ours.replace(partition, vector)
            case "observe":
                take_news(theirs, ours.news())  # The client observes what it hears of between two replies.
                theirs.note(partition, vector.frontier)  # All that another node tells it.
                ours.observe(theirs)
            case "tell":
                take_news(theirs, ours.news())
    for partition in range(4):
        assert theirs.vector(partition) == ours.vector(partition)


def test_only_the_origins_that_grew_are_told() -> None:
    bookmark = SharedBookmark()
    bookmark.note(7, VersionVector({A: 1, B: 2}))
    assert bookmark.news() == [Sight(7, VersionVector({A: 1, B: 2}).pack())]
    bookmark.note(7, VersionVector({A: 1, B: 3}))
    assert bookmark.news() == [Sight(7, VersionVector({B: 3}).pack())]


def test_origins_that_left_the_frontier_leave_the_bookmark() -> None:
    bookmark, theirs = SharedBookmark(), Bookmark()
    bookmark.note(7, VersionVector({A: 1, B: 2}))
    take_news(theirs, bookmark.news())
    theirs.note(7, VersionVector({B: 5}))  # Seen elsewhere, and not told to the node yet.
    bookmark.note(7, VersionVector({A: 1, B: 2, C: 1}).with_frontier([C]))
    told = bookmark.news()
    assert told == [Sight(7, VersionVector({C: 1}).pack(), known=VersionVector({A: 1, B: 2}).pack())]
    take_news(theirs, told)
    assert theirs.vector(7) == VersionVector({B: 5, C: 1})


def test_a_bookmark_names_the_frontier_of_what_was_seen() -> None:
    bookmark = Bookmark()
    bookmark.note(7, VersionVector({A: 3, B: 2}))
    bookmark.note(7, VersionVector({A: 3, B: 2, C: 1}).with_frontier([C]))
    assert bookmark.vector(7) == VersionVector({C: 1})
    bookmark.note(7, VersionVector({A: 4}).with_frontier([A]))  # Of a node that knows less of the rest.
    assert bookmark.vector(7) == VersionVector({A: 4, C: 1})


def test_a_partition_that_did_not_change_is_not_told() -> None:
    bookmark = SharedBookmark()
    for _ in range(2):
        bookmark.note(7, VersionVector({A: 1}))
        told = bookmark.news()
    assert told == []


def test_a_clients_own_origins_are_not_told_back() -> None:
    known = Bookmark()
    known.note(7, VersionVector({A: 1}))
    bookmark = SharedBookmark(known)
    bookmark.note(7, VersionVector({A: 1, B: 1}))
    assert bookmark.news() == [Sight(7, VersionVector({B: 1}).pack())]


def test_forgotten_entries_are_told_whole_and_replace() -> None:
    known = Bookmark()
    known.note(7, VersionVector({A: 9, B: 1}))
    bookmark = SharedBookmark(known)
    bookmark.replace(7, VersionVector({A: 3}))
    take_news(known, bookmark.news())
    assert known.vector(7) == VersionVector({A: 3})


def test_with_too_little_place_what_was_just_shown_comes_first_and_the_rest_is_counted() -> None:
    known = Bookmark()
    for partition in range(100):
        known.note(partition, VersionVector({A: 1}))
    bookmark = SharedBookmark(known)
    bookmark.note(99, VersionVector({A: 1}))  # Shown again, and no newer.
    chosen, left_out = bookmark.within(200)
    assert chosen.vector(99) == VersionVector({A: 1})
    assert len(chosen.text()) <= 200
    assert left_out == 100 - len(chosen) > 0
    assert bookmark.within(100_000) == (bookmark, 0)


@pytest.mark.parametrize("sight", [Sight(7, b"torn"), Sight(1024, b""), Sight(-1, b"")])
def test_news_that_are_none_are_refused(sight: Sight) -> None:
    with pytest.raises(InvalidValue, match="malformed change"):
        take_news(Bookmark(), [sight])
