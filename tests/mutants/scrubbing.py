"""Bugs of the comparison of rows among peers, and of what it replaces."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from shoal.cluster import scrub
from shoal.node.verification import evidence, rebuilding
from shoal.node.verification.rebuilding import Outcome, Rebuilder, _Made
from shoal.node.verification.report import ObjectPlace
from shoal.node.verification.scrubbing import Scrubber
from tests.mutants.mutant import Mutant


def a_hash_covers_keys_alone(patch: pytest.MonkeyPatch) -> None:
    sound = scrub._digest

    def digest(rows: Iterable[tuple[bytes, bytes, bytes]]) -> bytes:
        return sound([(name, key, b"") for name, key, _ in rows])

    patch.setattr(scrub, "_digest", digest)


def rows_are_compared_at_unequal_vectors(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(evidence, "vector_digest", lambda vector: b"any")


def what_is_being_swept_is_compared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(evidence, "of_partition", lambda storage, partition, most: frozenset())


def a_damaged_chunk_is_taken_for_whole(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Rebuilder, "_check_chunks", lambda *_: None)


def rows_that_differ_are_not_replaced(patch: pytest.MonkeyPatch) -> None:
    async def replace(*_: object) -> Outcome:
        return Outcome.SOUND

    patch.setattr(Rebuilder, "_replace", replace)


def what_a_save_builds_on_is_not_supplied(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rebuilding, "unreadable", lambda rows: [])


def what_was_supplied_is_not_swept_again(patch: pytest.MonkeyPatch) -> None:
    sound = Rebuilder._replace

    async def replace(self: Rebuilder, place: ObjectPlace, made: _Made, *, again: bool) -> Outcome:
        return await sound(self, place, made._replace(pruned=None), again=again)

    patch.setattr(Rebuilder, "_replace", replace)


def what_is_being_supplied_is_compared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Scrubber, "_as_sure", lambda self, piece: piece)


def a_majority_outweighs_a_log(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Scrubber, "_proved", lambda self, number: [])


MUTANTS = (
    Mutant(
        what_is_being_supplied_is_compared,
        "peers compare a thread while one still lacks what a save builds on",
        ("4",),
        "composed",
        frozenset({"set_back"}),
    ),
    Mutant(
        what_a_save_builds_on_is_not_supplied,
        "a node does not fetch the base of a save if it has swept that base",
        ("4", "9", "20"),
        "composed",
        frozenset({"set_back"}),
    ),
    Mutant(
        what_was_supplied_is_not_swept_again,
        "a base that was fetched for a save stays, though nothing needs it",
        ("4", "15", "20"),
        "composed",
        frozenset({"set_back"}),
    ),
    Mutant(a_hash_covers_keys_alone, "peers compare hashes of which rows there are, not of what they hold", ("20",)),
    Mutant(rows_are_compared_at_unequal_vectors, "peers compare their rows while one holds more operations", ("4",)),
    Mutant(what_is_being_swept_is_compared, "peers compare what one has swept and the other has not yet", ("4",)),
    Mutant(
        a_damaged_chunk_is_taken_for_whole, "an object is made anew from a chunk that is not what its digest names", ("20",)
    ),
    Mutant(
        a_majority_outweighs_a_log,
        "two copies of an altered row outvote the node whose log makes the right one",
        ("20", "4"),
        "composed",
        frozenset({"refilled"}),
    ),
    Mutant(rows_that_differ_are_not_replaced, "rows that differ are reported, and stay", ("20",)),
)
