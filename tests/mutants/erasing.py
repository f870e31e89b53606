"""Bugs in deletion, in pruning, and in what is swept after them."""

from __future__ import annotations

import pytest

from shoal.kinds.document.serving.documents import Documents
from shoal.kinds.document.serving.opening import DocumentGenerations
from shoal.kinds.journal.state import events as claims
from shoal.kinds.label import state as notes
from shoal.node.collection.garbage import Collector
from shoal.node.watching.feed import Subscriber
from tests.mutants.mutant import Mutant


def a_deletion_leaves_its_rows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("shoal.node.collection.garbage._generation", lambda entries: iter(()))


def a_deleted_document_stays_in_memory(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Documents, "replaced", lambda self, transaction, target: None)


def a_mirror_restores_what_was_deleted(patch: pytest.MonkeyPatch) -> None:
    """It sends all that it has to whatever document there is now."""
    patch.setattr(DocumentGenerations, "check", lambda self, transaction, target, generation, updates: None)
    patch.setattr(Subscriber, "_loses", lambda self, staged: False)


def an_erased_value_comes_back(patch: pytest.MonkeyPatch) -> None:
    """An append that arrives after the erasure of its event is applied with its value."""
    patch.setattr(claims, "is_erased", lambda rows, key, digest: False)


def notes_that_were_dropped_stay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Collector, "_notes", lambda self, entries: iter(()))


def what_was_cut_is_forgotten_before_its_rows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(notes, "swept", lambda rows, change, *, after=None: iter(()))


MUTANTS = (
    Mutant(notes_that_were_dropped_stay, "notes that were dropped leave their rows on the disk", ("15",)),
    Mutant(
        what_was_cut_is_forgotten_before_its_rows,
        "a node forgets which notes were dropped, and has their rows still",
        ("15",),
    ),
    Mutant(a_deletion_leaves_its_rows, "a deletion leaves its rows on the disk", ("15",)),
    Mutant(a_deleted_document_stays_in_memory, "a node goes on showing a document that was deleted", ("4", "15")),
    Mutant(a_mirror_restores_what_was_deleted, "a mirror brings back a document that was deleted", ("15",)),
    Mutant(
        an_erased_value_comes_back,
        "a late append brings the value of an erased event back",
        ("15",),
        composites=frozenset({"erased_unheard"}),
    ),
)
