"""Which pruned records and chunks a marking keeps, whatever else is written meanwhile."""

from __future__ import annotations

from shoal.kinds.thread.serving.pruning import Marking
from shoal.kinds.thread.state import channel, dag

PRUNED, CHUNK = b"p" * 16, b"c" * 32
NAMING = dag.Record([], "main", "", 0, b"", b"", {"x": channel.Recipe(b"h", 1, b"", added=(CHUNK,))})


def test_a_pruned_record_that_alone_names_a_needed_chunk_is_kept() -> None:
    marking = Marking({PRUNED})
    assert not marking.is_bones(PRUNED, NAMING)
    marking.used.add(CHUNK)
    assert marking.is_bones(PRUNED, NAMING)


def test_a_chunk_that_a_save_names_during_the_marking_is_kept() -> None:
    marking = Marking({PRUNED})
    assert marking.unused(NAMING) == [CHUNK]
    marking.protect(NAMING)
    assert marking.unused(NAMING) == []
    assert not marking.is_bones(PRUNED, NAMING)  # The new record names it.
