"""What a save carries of its author, and of what the author had seen."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from shoal.crdt.dot import Origin, VersionVector
from shoal.kinds.thread.flows.checkpoints import SAID_AGAIN_EVERY, Provenance
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.requests import Save, Saved
from simulation.bounds import altered

SAVE = Save("s", "t", {}, b"\x80")


def seen(sequence: int) -> VersionVector:
    return VersionVector({Origin(b"o" * 16): sequence})


def author(bookmark: Bookmark, *, name: str = "ada") -> Provenance:
    session = SimpleNamespace(bookmark=bookmark)
    connection: Any = SimpleNamespace(session=session, config=None)
    return Provenance(connection, name)


def saved(provenance: Provenance, partition: int = 9) -> list[int]:
    """The partitions of which a save said what its author had seen."""
    signed = provenance.signed(SAVE)
    provenance.noted(signed, Saved("id", [], "main", [], 0, partition))
    return [number for number, _ in Bookmark.unpack(signed.seen)]


def test_without_an_author_nothing_is_carried() -> None:
    bookmark = Bookmark()
    bookmark.note(1, seen(1))
    assert author(bookmark, name="").signed(SAVE) is SAVE


def test_a_save_carries_what_is_new_since_the_last() -> None:
    bookmark = Bookmark()
    bookmark.note(1, seen(1))
    provenance = author(bookmark)
    assert saved(provenance) == [1]
    assert saved(provenance) == []
    bookmark.note(2, seen(1))
    assert saved(provenance) == [2]


def test_every_so_often_a_save_carries_everything() -> None:
    bookmark = Bookmark()
    bookmark.note(1, seen(1))
    provenance = author(bookmark)
    carried = [saved(provenance) for _ in range(SAID_AGAIN_EVERY + 1)]
    assert carried == [[1], *[[]] * (SAID_AGAIN_EVERY - 1), [1]]


def test_the_threads_own_partition_is_left_out() -> None:
    bookmark = Bookmark()
    bookmark.note(1, seen(1))
    provenance = author(bookmark)
    saved(provenance, partition=1)
    bookmark.note(1, seen(2))
    assert saved(provenance, partition=1) == []


def test_unfitting_writes_go_with_the_next_save() -> None:
    bookmark = Bookmark()
    for partition in (1, 2):
        bookmark.note(partition, seen(1))
    provenance = author(bookmark)
    with altered(seen_bytes_max=60):
        assert [saved(provenance), saved(provenance)] == [[1], [2]]
