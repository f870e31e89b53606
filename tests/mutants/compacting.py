"""Bugs in the compaction of documents."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest

from shoal.crdt.dot import Floor, VersionVector
from shoal.crdt.rows import Rows
from shoal.kinds.document.state import compaction, document
from shoal.kinds.document.state.compaction import Coverage, CurrentCompaction, Cut, End
from shoal.kinds.document.state.document import Pace
from shoal.node.collection.entries import GarbageEntry
from shoal.node.collection.garbage import Collector, Piece
from shoal.storage import keys
from tests.mutants.mutant import Mutant


def a_compaction_covers_one_operation_too_many(patch: pytest.MonkeyPatch) -> None:
    sound = compaction.cut

    def cut(*args: Any, **bounds: Any) -> Generator[None, None, Cut]:
        found = yield from sound(*args, **bounds)
        return found._replace(coverage=one_too_far(found.coverage))

    patch.setattr(compaction, "cut", cut)


def one_too_far(coverage: Coverage) -> Coverage:
    """It covers one operation more of each origin."""
    return coverage._replace(ends={origin: End(end.sequence + 1, end.hlc) for origin, end in coverage.ends.items()})


def a_floor_is_above_what_all_hold(patch: pytest.MonkeyPatch) -> None:
    def raised(self: Coverage, context: VersionVector, below: int) -> Coverage:
        last = max((end.hlc for end in self.ends.values()), default=0)
        return Coverage(self.floor.join(Floor(last, last)))

    patch.setattr(Coverage, "raised", raised)


def a_compaction_lacks_an_update_and_nobody_looks(patch: pytest.MonkeyPatch) -> None:
    sound = compaction.content

    def content(rows: Callable[[], Rows], coverage: Coverage, *, pace: Pace) -> Iterator[list[bytes]]:
        *updates, withdrawn = [update for some in sound(rows, coverage, pace=pace) for update in some]
        return iter([[*updates[:-1], withdrawn]])

    def proved(rows: Callable[[], Rows], found: CurrentCompaction, digest: bytes, pace: Pace) -> Iterator[None]:
        return iter(())

    patch.setattr(compaction, "content", content)
    patch.setattr(compaction, "proved", proved)


def a_snapshot_outlives_what_it_lacks(patch: pytest.MonkeyPatch) -> None:
    sound = Collector._updates

    def updates(self: Collector, entries: list[GarbageEntry]) -> Iterator[Piece]:
        for piece in sound(self, entries):
            rows = {key: value for key, value in piece.rows.items() if not key.startswith(keys.SNAPSHOT)}
            yield piece._replace(rows=rows)

    patch.setattr(Collector, "_updates", updates)


def a_beginning_is_swept_with_what_was_compacted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(document, "beginnings", lambda rows: set())


MUTANTS = (
    Mutant(a_compaction_covers_one_operation_too_many, "a compaction covers an operation that its issuer did not know", ("4",)),
    Mutant(
        a_floor_is_above_what_all_hold,
        "a compaction covers what its node has not heard of, as old as what it has",
        ("3", "4", "15"),
    ),
    Mutant(
        a_compaction_lacks_an_update_and_nobody_looks,
        "a compaction lacks an update that it covers, and it is swept unseen",
        ("3", "4"),
    ),
    Mutant(a_snapshot_outlives_what_it_lacks, "a document's snapshot is not voided by the sweep of what it lacks", ("4",)),
    Mutant(a_beginning_is_swept_with_what_was_compacted, "a beginning is swept with what was compacted", ("4", "10")),
)
